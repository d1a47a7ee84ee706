"""A commit of one topic and one producer has a procedure of its own.

That is what most commits are: a client writes to a topic. What is the same for all of its partitions is given once,
what differs is in arrays that the partition's number leads into, and rows are found without a join: with PostgreSQL 17
or newer, since earlier versions may take the list of partitions for a filter. Gateways of the version before may go
on: they call kafka.advance_partitions, as do the newer ones for everything else.

The two differ where DeleteRecords has moved the last stable offset past what a gateway remembers: this one then lets
it follow the end, as does a gateway that reads it anew.

Locks: none beyond the catalog's.
"""

from __future__ import annotations

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

PROCEDURE = """
CREATE PROCEDURE kafka.advance_topic(
    follows bigint, number bigint, in_topic integer, in_partitions integer[], begins bigint[], ends bigint[],
    newest timestamptz[], by_producer bigint, by_epoch smallint, last_sequences integer[], run_lengths bigint[],
    windows text[]
)
LANGUAGE plpgsql
-- As in kafka.advance_partitions. The list of partitions is expected to be longer than it is.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off AS $procedure$
DECLARE
    moved integer;
    one_partition integer;
BEGIN
    -- A session's setting is undone with the transaction that made it: it tells whether the commit before is in force.
    IF follows <> 0 AND follows::text IS DISTINCT FROM current_setting('tablewire.commit', true) THEN
        RAISE EXCEPTION 'commit % of this session is not in force', follows USING ERRCODE = 'TW008';
    END IF;
    IF number <> 0 AND set_config('tablewire.commit', number::text, false) IS NULL THEN NULL; END IF;

    -- In order, since the partitions come sorted. An expression of its own: PERFORM would run a query for each.
    FOREACH one_partition IN ARRAY in_partitions LOOP
        IF pg_advisory_xact_lock(in_topic::bigint << 32 | one_partition) IS NULL THEN NULL; END IF;
    END LOOP;

    -- Nothing here is part of a transaction: while none is open the last stable offset is the end, else it stays.
    UPDATE kafka.partitions p
    SET next_offset = ends[p.partition],
        last_stable_offset = CASE WHEN p.last_stable_offset = p.next_offset THEN ends[p.partition]
                                  ELSE p.last_stable_offset END,
        max_timestamp = greatest(p.max_timestamp, newest[p.partition])
    WHERE p.topic_id = in_topic AND p.partition = ANY (in_partitions) AND p.next_offset = begins[p.partition];
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved <> cardinality(in_partitions) THEN
        RAISE EXCEPTION '% of % partitions are where they were', moved, cardinality(in_partitions)
            USING ERRCODE = 'TW006';
    END IF;

    -- All but a producer's first batch here find a row, and to update it is cheaper than to try an insert.
    IF by_producer IS NOT NULL THEN
        UPDATE kafka.producer_sequences s
        SET producer_epoch = by_epoch, last_sequence = last_sequences[s.partition_id],
            run_length = run_lengths[s.partition_id], batches = windows[s.partition_id], updated_at = now()
        WHERE s.producer_id = by_producer AND s.topic_id = in_topic AND s.partition_id = ANY (in_partitions)
          AND s.producer_epoch <= by_epoch;
        GET DIAGNOSTICS moved = ROW_COUNT;
        IF moved <> cardinality(in_partitions) THEN
            INSERT INTO kafka.producer_sequences AS s (producer_id, topic_id, partition_id, producer_epoch,
                last_sequence, run_length, batches)
            SELECT by_producer, in_topic, i, by_epoch, last_sequences[i], run_lengths[i], windows[i]
            FROM unnest(in_partitions) AS i
            ON CONFLICT (producer_id, topic_id, partition_id) DO UPDATE SET
                producer_epoch = excluded.producer_epoch, last_sequence = excluded.last_sequence,
                run_length = excluded.run_length, batches = excluded.batches, updated_at = now()
            WHERE s.producer_epoch <= excluded.producer_epoch;
            GET DIAGNOSTICS moved = ROW_COUNT;
            IF moved <> cardinality(in_partitions) THEN
                RAISE EXCEPTION '% of % partitions have no newer epoch of producer %', moved,
                    cardinality(in_partitions), by_producer USING ERRCODE = 'TW006';
            END IF;
        END IF;
    END IF;
END
$procedure$;

COMMENT ON PROCEDURE kafka.advance_topic IS 'As kafka.advance_partitions, for batches of one topic that are in no '
    'transaction and have the same producer, null for none: the arrays behind in_partitions hold what is said of a '
    'partition where its number is. For gateways.';
"""


def upgrade() -> None:
    op.execute(PROCEDURE)
