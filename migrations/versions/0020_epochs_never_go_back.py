"""A commit never takes a producer's epoch back.

That a partition's end is where a gateway remembers it proves that nobody else appended there. It does not prove that a
producer is where it was: a batch all of whose business keys were there before moves its producer and not the end. So a
producer that was fenced by such a batch of its successor could still write through another gateway. Now the commit that
would take its epoch back is undone and judged again, by what the database says. Gateways of the version before may go
on: they understand the answer.

Locks: none beyond the catalog's.
"""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

PROCEDURE = """
CREATE OR REPLACE PROCEDURE kafka.advance_partitions(
    follows bigint, number bigint, transactions bigint[], locks bigint[], advances bigint[], advances_at integer[],
    extents bigint[], producers kafka.remembered_producer[]
)
LANGUAGE plpgsql
-- What differs from call to call is no reason to plan again; where the lists begin is given, since a list is
-- expected to be short. Tables that are small today are found by their keys too: a plan lasts as long as a session,
-- and rows that are updated all the time leave many dead ones beside them.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off AS $procedure$
DECLARE
    moved integer;
    lock_key bigint;
BEGIN
    -- A session's setting is undone with the transaction that made it: it tells whether the commit before is in force.
    IF follows <> 0 AND follows::text IS DISTINCT FROM current_setting('tablewire.commit', true) THEN
        RAISE EXCEPTION 'commit % of this session is not in force', follows USING ERRCODE = 'TW008';
    END IF;
    IF number <> 0 AND set_config('tablewire.commit', number::text, false) IS NULL THEN NULL; END IF;

    -- Lock order: transactions, then partitions; both come sorted.
    FOR i IN 1 .. cardinality(transactions) BY 2 LOOP
        PERFORM FROM kafka.transactions t
        WHERE t.producer_id = transactions[i] AND t.producer_epoch = transactions[i + 1] AND t.state = 'Ongoing'
        FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the transaction of producer % is not open', transactions[i] USING ERRCODE = 'TW007';
        END IF;
    END LOOP;

    -- An expression of its own: PERFORM would run a query for each.
    FOREACH lock_key IN ARRAY locks LOOP
        IF pg_advisory_xact_lock(lock_key) IS NULL THEN NULL; END IF;
    END LOOP;

    -- While no transaction is open the last stable offset is the end and moves, to the first record of a transaction
    -- that this commit begins or to the new end; otherwise it stays. It never goes back: DeleteRecords may have
    -- moved it.
    UPDATE kafka.partitions p
    SET next_offset = advances[i + 3],
        last_stable_offset = CASE WHEN p.last_stable_offset = p.next_offset
                                  THEN greatest(p.last_stable_offset, advances[i + 4])
                                  ELSE p.last_stable_offset END,
        max_timestamp = greatest(p.max_timestamp, (timestamp 'epoch' + make_interval(
            days => (advances[i + 5] / 86400000)::int,
            secs => (advances[i + 5] % 86400000) / 1000.0)) AT TIME ZONE 'UTC')
    FROM unnest(advances_at) AS i
    WHERE p.topic_id = advances[i] AND p.partition = advances[i + 1] AND p.next_offset = advances[i + 2];
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved <> cardinality(advances_at) THEN
        RAISE EXCEPTION '% of % partitions are where they were', moved, cardinality(advances_at)
            USING ERRCODE = 'TW006';
    END IF;

    FOR i IN 1 .. cardinality(extents) BY 5 LOOP
        UPDATE kafka.transaction_partitions tp
        SET first_offset = coalesce(tp.first_offset, extents[i + 3]), last_offset = extents[i + 4]
        WHERE tp.producer_id = extents[i] AND tp.topic_id = extents[i + 1] AND tp.partition = extents[i + 2];
        IF NOT FOUND THEN
            RAISE EXCEPTION 'partition % of topic id % is not in the transaction of producer %', extents[i + 2],
                extents[i + 1], extents[i] USING ERRCODE = 'TW007';
        END IF;
    END LOOP;

    -- All but a producer's first batch here find a row, and to update it is cheaper than to try an insert.
    IF cardinality(producers) > 0 THEN
        UPDATE kafka.producer_sequences s
        SET producer_epoch = p.producer_epoch, last_sequence = p.last_sequence, run_length = p.run_length,
            batches = p.batches, updated_at = now()
        FROM unnest(producers) AS p
        WHERE s.producer_id = p.producer_id AND s.topic_id = p.topic_id AND s.partition_id = p.partition_id
          AND s.producer_epoch <= p.producer_epoch;
        GET DIAGNOSTICS moved = ROW_COUNT;
        IF moved <> cardinality(producers) THEN
            INSERT INTO kafka.producer_sequences AS s (producer_id, topic_id, partition_id, producer_epoch,
                last_sequence, run_length, batches)
            SELECT p.producer_id, p.topic_id, p.partition_id, p.producer_epoch, p.last_sequence, p.run_length, p.batches
            FROM unnest(producers) AS p
            ON CONFLICT (producer_id, topic_id, partition_id) DO UPDATE SET
                producer_epoch = excluded.producer_epoch, last_sequence = excluded.last_sequence,
                run_length = excluded.run_length, batches = excluded.batches, updated_at = now()
            WHERE s.producer_epoch <= excluded.producer_epoch;
            GET DIAGNOSTICS moved = ROW_COUNT;
            IF moved <> cardinality(producers) THEN
                RAISE EXCEPTION '% of % producers have no newer epoch', moved, cardinality(producers)
                    USING ERRCODE = 'TW006';
            END IF;
        END IF;
    END IF;
END
$procedure$;

COMMENT ON PROCEDURE kafka.advance_partitions IS 'The first half of a commit of records: see that the commit which it '
    'follows is in force (else SQLSTATE TW008; 0: it follows none), share open transactions (else TW007), lock '
    'partitions, move their ends if nobody else has, and remember the newest five batches of each producer if none has '
    'a newer epoch (else TW006). For gateways.';
"""


def upgrade() -> None:
    op.execute(PROCEDURE)
