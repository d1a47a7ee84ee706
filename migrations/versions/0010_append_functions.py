"""Appending: the statements of a commit as two functions, whose plans PostgreSQL keeps.

Locks: none; new functions.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

FUNCTIONS = """
CREATE FUNCTION kafka.advance_partitions(
    transactions bigint[], locks bigint[], advances bigint[], extents bigint[]
) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    -- Lock order: transactions, then partitions; both come sorted.
    FOR i IN 1 .. cardinality(transactions) BY 2 LOOP
        PERFORM FROM kafka.transactions t
        WHERE t.producer_id = transactions[i] AND t.producer_epoch = transactions[i + 1] AND t.state = 'Ongoing'
        FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the transaction of producer % is not open', transactions[i] USING ERRCODE = 'TW006';
        END IF;
    END LOOP;

    FOR i IN 1 .. cardinality(locks) LOOP
        PERFORM pg_advisory_xact_lock(locks[i]);
    END LOOP;

    -- While no transaction is open the last stable offset is the end and moves, to the first record of a transaction
    -- that this commit begins or to the new end; otherwise it stays. It never goes back: DeleteRecords may have
    -- moved it.
    FOR i IN 1 .. cardinality(advances) BY 6 LOOP
        UPDATE kafka.partitions p
        SET next_offset = advances[i + 3],
            last_stable_offset = CASE WHEN p.last_stable_offset = p.next_offset
                                      THEN greatest(p.last_stable_offset, advances[i + 4])
                                      ELSE p.last_stable_offset END,
            max_timestamp = greatest(p.max_timestamp, (timestamp 'epoch' + make_interval(
                days => (advances[i + 5] / 86400000)::int,
                secs => (advances[i + 5] % 86400000) / 1000.0)) AT TIME ZONE 'UTC')
        WHERE p.topic_id = advances[i] AND p.partition = advances[i + 1] AND p.next_offset = advances[i + 2];
        IF NOT FOUND THEN
            RAISE EXCEPTION 'partition % of topic id % is not at offset %', advances[i + 1], advances[i],
                advances[i + 2] USING ERRCODE = 'TW006';
        END IF;
    END LOOP;

    FOR i IN 1 .. cardinality(extents) BY 5 LOOP
        UPDATE kafka.transaction_partitions tp
        SET first_offset = coalesce(tp.first_offset, extents[i + 3]), last_offset = extents[i + 4]
        WHERE tp.producer_id = extents[i] AND tp.topic_id = extents[i + 1] AND tp.partition = extents[i + 2];
        IF NOT FOUND THEN
            RAISE EXCEPTION 'partition % of topic id % is not in the transaction of producer %', extents[i + 2],
                extents[i + 1], extents[i] USING ERRCODE = 'TW006';
        END IF;
    END LOOP;
END
$function$;

CREATE FUNCTION kafka.remember_batches(
    producer_ids bigint[], topic_ids integer[], partitions integer[], epochs smallint[], newest integer[],
    run_lengths bigint[], first_sequences text[], last_sequences text[], base_offsets text[], timestamps_ms text[]
) RETURNS void
LANGUAGE plpgsql AS $function$
BEGIN
    INSERT INTO kafka.producer_sequences (producer_id, topic_id, partition_id, producer_epoch, last_sequence,
        run_length, first_sequences, last_sequences, base_offsets, timestamps_ms)
    SELECT w.producer_id, w.topic_id, w.partition, w.epoch, w.newest, w.run_length,
           w.firsts::integer[], w.lasts::integer[], w.offsets::bigint[], w.times::bigint[]
    FROM unnest(producer_ids, topic_ids, partitions, epochs, newest, run_lengths,
                first_sequences, last_sequences, base_offsets, timestamps_ms)
         AS w (producer_id, topic_id, partition, epoch, newest, run_length, firsts, lasts, offsets, times)
    ON CONFLICT (producer_id, topic_id, partition_id) DO UPDATE SET
        producer_epoch = excluded.producer_epoch, last_sequence = excluded.last_sequence,
        run_length = excluded.run_length, first_sequences = excluded.first_sequences,
        last_sequences = excluded.last_sequences, base_offsets = excluded.base_offsets,
        timestamps_ms = excluded.timestamps_ms, updated_at = now();
END
$function$;
"""

COMMENTS = {
    "FUNCTION kafka.advance_partitions(bigint[], bigint[], bigint[], bigint[])": "The first half of a commit of "
    "records: share open transactions, lock partitions, move their ends if nobody else has (else SQLSTATE TW006). "
    "For gateways.",
    "FUNCTION kafka.remember_batches(bigint[], integer[], integer[], smallint[], integer[], bigint[], text[], text[], "
    "text[], text[])": "Remember the newest five batches of each producer that wrote in a commit. For gateways.",
}


def upgrade() -> None:
    op.execute(FUNCTIONS)
    for target, text in COMMENTS.items():
        op.execute(f"COMMENT ON {target} IS '{text}'")


def downgrade() -> None:
    for target in COMMENTS:
        op.execute(f"DROP {target}")
