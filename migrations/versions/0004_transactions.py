"""Transactions: what is open, which partitions and offsets it holds, what was aborted; ending one is one statement.

Locks: access exclusive on kafka.committed_messages for an instant (the view is replaced); else new objects.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE kafka.transactions (
    producer_id bigint NOT NULL UNIQUE,
    started_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(),
    transaction_timeout_ms integer NOT NULL,
    producer_epoch smallint NOT NULL,
    previous_epoch smallint,
    ended_epoch smallint,
    previous_producer_id bigint,
    speaker_gateway bigint,
    speaker_connection bigint,
    transactional_id text COLLATE "C" PRIMARY KEY,
    state text NOT NULL DEFAULT 'Empty' CHECK (state IN ('Empty', 'Ongoing', 'CompleteCommit', 'CompleteAbort')),
    client_id text
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX transactions_open ON kafka.transactions (started_at) WHERE state = 'Ongoing';

CREATE TABLE kafka.transaction_partitions (
    producer_id bigint NOT NULL,
    first_offset bigint,
    last_offset bigint,
    topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition integer NOT NULL,
    PRIMARY KEY (producer_id, topic_id, partition)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX transaction_partitions_partition ON kafka.transaction_partitions (topic_id, partition);

CREATE TABLE kafka.transaction_offsets (
    producer_id bigint NOT NULL,
    committed_offset bigint NOT NULL,
    topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition integer NOT NULL,
    leader_epoch integer,
    group_id text COLLATE "C" NOT NULL,
    metadata text NOT NULL DEFAULT '',
    PRIMARY KEY (producer_id, group_id, topic_id, partition)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX transaction_offsets_group ON kafka.transaction_offsets (group_id, topic_id, partition);

CREATE TABLE kafka.aborted_transactions (
    producer_id bigint NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition integer NOT NULL,
    PRIMARY KEY (topic_id, partition, last_offset)
);
CREATE INDEX aborted_transactions_producer
    ON kafka.aborted_transactions (topic_id, partition, producer_id, first_offset);

-- Sixteen rows instead of one, so that transactions ending at once do not wait for each other.
CREATE TABLE kafka.transaction_counters (
    slot integer PRIMARY KEY,
    started bigint NOT NULL DEFAULT 0,
    committed bigint NOT NULL DEFAULT 0,
    aborted bigint NOT NULL DEFAULT 0,
    timed_out bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
INSERT INTO kafka.transaction_counters (slot) SELECT generate_series(0, 15);
"""

FUNCTIONS = """
CREATE FUNCTION kafka.end_transaction(
    ended_producer_id bigint, is_commit boolean, next_epoch smallint, cause text DEFAULT 'client'
) RETURNS TABLE (topic_id integer, partition integer, next_offset bigint, last_stable_offset bigint,
                 leader_epoch integer, marked_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
BEGIN
    -- Lock order: the transaction, then its partitions in order. Whoever appends to the transaction shares its row.
    PERFORM FROM kafka.transactions t WHERE t.producer_id = ended_producer_id FOR UPDATE;
    PERFORM pg_advisory_xact_lock((held.topic_id::bigint << 32) | held.partition)
    FROM (SELECT tp.topic_id, tp.partition FROM kafka.transaction_partitions tp
          WHERE tp.producer_id = ended_producer_id AND tp.first_offset IS NOT NULL
          ORDER BY tp.topic_id, tp.partition) AS held;

    RETURN QUERY
    WITH ended AS (
        SELECT tp.topic_id, tp.partition, tp.first_offset FROM kafka.transaction_partitions tp
        WHERE tp.producer_id = ended_producer_id AND tp.first_offset IS NOT NULL
    ), moved AS (
        UPDATE kafka.partitions p
        SET next_offset = p.next_offset + 1,
            -- Never back: DeleteRecords may have moved it beyond the first record of an open transaction.
            last_stable_offset = greatest(p.last_stable_offset, coalesce(
                (SELECT min(other.first_offset) FROM kafka.transaction_partitions other
                 WHERE other.topic_id = p.topic_id AND other.partition = p.partition
                   AND other.producer_id <> ended_producer_id),
                p.next_offset + 1)),
            max_timestamp = greatest(p.max_timestamp, date_trunc('milliseconds', now()))
        FROM ended e WHERE p.topic_id = e.topic_id AND p.partition = e.partition
        RETURNING p.topic_id, p.partition, p.next_offset, p.last_stable_offset, p.leader_epoch, e.first_offset
    ), marked AS (
        INSERT INTO kafka.messages ("offset", "timestamp", producer_id, topic_id, partition, producer_epoch,
                                    timestamp_type, control_type, is_transactional, key, value)
        SELECT m.next_offset - 1, date_trunc('milliseconds', now()), ended_producer_id, m.topic_id, m.partition,
               next_epoch, 0, is_commit::int, true,
               CASE WHEN is_commit THEN '\\x00000001'::bytea ELSE '\\x00000000'::bytea END, '\\x000000000000'::bytea
        FROM moved m
    ), aborted AS (
        INSERT INTO kafka.aborted_transactions (topic_id, partition, producer_id, first_offset, last_offset)
        SELECT m.topic_id, m.partition, ended_producer_id, m.first_offset, m.next_offset - 1
        FROM moved m WHERE NOT is_commit
    )
    SELECT m.topic_id, m.partition, m.next_offset, m.last_stable_offset, m.leader_epoch,
           date_trunc('milliseconds', now())
    FROM moved m;

    IF is_commit THEN
        INSERT INTO kafka.groups (group_id)
        SELECT DISTINCT o.group_id FROM kafka.transaction_offsets o WHERE o.producer_id = ended_producer_id
        ON CONFLICT (group_id) DO NOTHING;
        INSERT INTO kafka.consumer_offsets (group_id, topic_id, partition, committed_offset, leader_epoch, metadata)
        SELECT o.group_id, o.topic_id, o.partition, o.committed_offset, o.leader_epoch, o.metadata
        FROM kafka.transaction_offsets o WHERE o.producer_id = ended_producer_id
        ORDER BY o.group_id, o.topic_id, o.partition
        ON CONFLICT (group_id, topic_id, partition) DO UPDATE SET
            committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
            metadata = excluded.metadata, committed_at = now(), expires_at = NULL;
    END IF;
    DELETE FROM kafka.transaction_offsets o WHERE o.producer_id = ended_producer_id;
    DELETE FROM kafka.transaction_partitions tp WHERE tp.producer_id = ended_producer_id;

    UPDATE kafka.transaction_counters c
    SET committed = c.committed + is_commit::int, aborted = c.aborted + (NOT is_commit)::int,
        timed_out = c.timed_out + (cause = 'timeout')::int
    FROM kafka.transactions t
    WHERE c.slot = pg_backend_pid() % 16 AND t.producer_id = ended_producer_id AND t.state = 'Ongoing';

    UPDATE kafka.transactions t
    SET state = CASE WHEN is_commit THEN 'CompleteCommit' ELSE 'CompleteAbort' END,
        ended_epoch = CASE WHEN cause = 'client' THEN t.producer_epoch END,
        -- The same producer may ask for the epoch it goes on with; InitProducerId of another instance forgets this.
        previous_epoch = CASE WHEN next_epoch = t.producer_epoch THEN t.previous_epoch ELSE t.producer_epoch END,
        producer_epoch = next_epoch, started_at = NULL, updated_at = now()
    WHERE t.producer_id = ended_producer_id;
    UPDATE kafka.producer_ids i SET producer_epoch = next_epoch, last_active_at = now()
    WHERE i.producer_id = ended_producer_id AND i.producer_epoch <> next_epoch;
END
$function$;

CREATE FUNCTION kafka.abort_transaction(aborted_id text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    open_one kafka.transactions;
    marker_count integer;
BEGIN
    SELECT * INTO open_one FROM kafka.transactions t WHERE t.transactional_id = aborted_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no transactional id %', aborted_id USING HINT = 'see kafka.transactions';
    END IF;
    IF open_one.state <> 'Ongoing' THEN
        RETURN format('%s has no open transaction', aborted_id);
    END IF;
    SELECT count(*) INTO marker_count
    FROM kafka.end_transaction(
        open_one.producer_id, false, least(open_one.producer_epoch + 1, 32767)::smallint, 'operator');
    RETURN format('aborted, in %s partitions; the producer is fenced', marker_count);
END
$function$;
"""

VIEWS = """
CREATE OR REPLACE VIEW kafka.committed_messages AS
SELECT t.name AS topic, m.partition, m."offset", m."timestamp", m.key, m.value,
       kafka.headers_as_json(m.header_names, m.header_values) AS headers,
       m.producer_id, m.producer_epoch
FROM kafka.topics t
JOIN kafka.partitions p ON p.topic_id = t.topic_id
JOIN kafka.messages m ON m.topic_id = p.topic_id AND m.partition = p.partition
WHERE m."offset" >= p.log_start_offset AND m."offset" < p.last_stable_offset AND m.control_type IS NULL
  -- A producer's transactions follow each other, so of its aborted ones only the last that began before can hold the
  -- row: one look into the index per row, however many were aborted.
  AND (NOT m.is_transactional OR coalesce((
      SELECT a.last_offset FROM kafka.aborted_transactions a
      WHERE a.topic_id = m.topic_id AND a.partition = m.partition AND a.producer_id = m.producer_id
        AND a.first_offset <= m."offset"
      ORDER BY a.first_offset DESC LIMIT 1) < m."offset", true));

CREATE VIEW kafka.open_transactions AS
SELECT tx.transactional_id, tx.producer_id, tx.producer_epoch, tx.client_id, tx.started_at,
       now() - tx.started_at AS age, tx.transaction_timeout_ms,
       (SELECT jsonb_agg(jsonb_build_object('topic', t.name, 'partition', tp.partition, 'first_offset', tp.first_offset,
            'last_offset', tp.last_offset, 'holds_last_stable_offset', tp.first_offset = p.last_stable_offset)
            ORDER BY t.name, tp.partition)
        FROM kafka.transaction_partitions tp
        JOIN kafka.topics t ON t.topic_id = tp.topic_id
        JOIN kafka.partitions p ON p.topic_id = tp.topic_id AND p.partition = tp.partition
        WHERE tp.producer_id = tx.producer_id) AS partitions,
       (SELECT count(*) FROM kafka.transaction_offsets o WHERE o.producer_id = tx.producer_id) AS offsets_waiting
FROM kafka.transactions tx WHERE tx.state = 'Ongoing';

CREATE VIEW kafka.transaction_stats AS
SELECT sum(c.started)::bigint AS started, sum(c.committed)::bigint AS committed, sum(c.aborted)::bigint AS aborted,
       sum(c.timed_out)::bigint AS timed_out,
       (SELECT count(*) FROM kafka.transactions WHERE state = 'Ongoing') AS active,
       (SELECT max(now() - started_at) FROM kafka.transactions WHERE state = 'Ongoing') AS oldest_open_age
FROM kafka.transaction_counters c;
"""

COMMENTS = {
    "TABLE kafka.transactions": "The open or last transaction of each transactional id.",
    "COLUMN kafka.transactions.producer_id": "The producer id that the transactional id has now.",
    "COLUMN kafka.transactions.started_at": "When this transaction began; null while none is open.",
    "COLUMN kafka.transactions.updated_at": "When the row last changed.",
    "COLUMN kafka.transactions.transaction_timeout_ms": "An open transaction is aborted after this long.",
    "COLUMN kafka.transactions.producer_epoch": "The newest epoch; older instances are fenced.",
    "COLUMN kafka.transactions.previous_epoch": "The epoch before, if its owner may ask for the newest: "
    "nobody else was told it.",
    "COLUMN kafka.transactions.ended_epoch": "The epoch in which the client ended its last transaction: a "
    "retry is recognised by it.",
    "COLUMN kafka.transactions.previous_producer_id": "The producer id before the last one ran out of epochs.",
    "COLUMN kafka.transactions.speaker_gateway": "Process of the gateway over which a classic client "
    "last spoke about it.",
    "COLUMN kafka.transactions.speaker_connection": "Number of that connection there: requests over "
    "older ones are refused.",
    "COLUMN kafka.transactions.transactional_id": "transactional.id of the producer.",
    "COLUMN kafka.transactions.state": "Empty, Ongoing, CompleteCommit or CompleteAbort.",
    "COLUMN kafka.transactions.client_id": "client.id of the producer.",
    "TABLE kafka.transaction_partitions": "The partitions of each open transaction.",
    "COLUMN kafka.transaction_partitions.producer_id": "Whose transaction.",
    "COLUMN kafka.transaction_partitions.first_offset": "First offset it wrote there; null while it wrote nothing.",
    "COLUMN kafka.transaction_partitions.last_offset": "Last offset it wrote there.",
    "COLUMN kafka.transaction_partitions.topic_id": "The topic.",
    "COLUMN kafka.transaction_partitions.partition": "Partition number.",
    "TABLE kafka.transaction_offsets": "Consumer offsets that become true when their transaction commits.",
    "COLUMN kafka.transaction_offsets.producer_id": "Whose transaction.",
    "COLUMN kafka.transaction_offsets.committed_offset": "The offset to commit.",
    "COLUMN kafka.transaction_offsets.topic_id": "The topic.",
    "COLUMN kafka.transaction_offsets.partition": "Partition number.",
    "COLUMN kafka.transaction_offsets.leader_epoch": "Leader epoch of the last record consumed; null if unknown.",
    "COLUMN kafka.transaction_offsets.group_id": "The consumer group.",
    "COLUMN kafka.transaction_offsets.metadata": "Text that the consumer keeps with the offset.",
    "TABLE kafka.aborted_transactions": "What read_committed readers skip: rows of this producer in this range.",
    "COLUMN kafka.aborted_transactions.producer_id": "Whose transaction it was.",
    "COLUMN kafka.aborted_transactions.first_offset": "The first offset it wrote.",
    "COLUMN kafka.aborted_transactions.last_offset": "The offset of its abort marker.",
    "COLUMN kafka.aborted_transactions.topic_id": "The topic.",
    "COLUMN kafka.aborted_transactions.partition": "Partition number.",
    "TABLE kafka.transaction_counters": "Counts behind kafka.transaction_stats, in slots that do not "
    "wait for each other.",
    "COLUMN kafka.transaction_counters.slot": "0 to 15, by database session.",
    "COLUMN kafka.transaction_counters.started": "Transactions begun.",
    "COLUMN kafka.transaction_counters.committed": "Transactions committed.",
    "COLUMN kafka.transaction_counters.aborted": "Transactions aborted, those below included.",
    "COLUMN kafka.transaction_counters.timed_out": "Transactions aborted because their time was over.",
    "FUNCTION kafka.end_transaction(bigint, boolean, smallint, text)": "Commits or aborts the open transaction of a "
    "producer in one go: markers, aborted ranges, last stable offsets, consumer offsets, state and epoch. Called by "
    "the gateway.",
    "FUNCTION kafka.abort_transaction(text)": "For an operator: aborts the open transaction of a "
    "transactional id and fences its producer.",
    "VIEW kafka.open_transactions": "Open transactions with their age, and whose last stable offset they hold back.",
    "VIEW kafka.transaction_stats": "How many transactions began, were committed, aborted or "
    "timed out, and are open now.",
    "COLUMN kafka.open_transactions.transactional_id": "transactional.id of the producer.",
    "COLUMN kafka.open_transactions.producer_id": "Its producer id.",
    "COLUMN kafka.open_transactions.producer_epoch": "Its epoch.",
    "COLUMN kafka.open_transactions.client_id": "Its client.id.",
    "COLUMN kafka.open_transactions.started_at": "When the transaction began.",
    "COLUMN kafka.open_transactions.age": "How long ago that was.",
    "COLUMN kafka.open_transactions.transaction_timeout_ms": "It is aborted when it gets older than this.",
    "COLUMN kafka.open_transactions.partitions": "Its partitions, with the offsets it wrote and whether it is the one "
    "that holds back the last stable offset.",
    "COLUMN kafka.open_transactions.offsets_waiting": "How many consumer offsets become true with it.",
    "COLUMN kafka.transaction_stats.started": "Transactions begun since the schema was made.",
    "COLUMN kafka.transaction_stats.committed": "Transactions committed.",
    "COLUMN kafka.transaction_stats.aborted": "Transactions aborted, those that timed out included.",
    "COLUMN kafka.transaction_stats.timed_out": "Transactions aborted because their time was over.",
    "COLUMN kafka.transaction_stats.active": "Transactions that are open now.",
    "COLUMN kafka.transaction_stats.oldest_open_age": "Age of the oldest open one; null if there is none.",
}

GRANTS = """
DO $grants$
BEGIN
    REVOKE ALL ON FUNCTION kafka.abort_transaction(text),
        kafka.end_transaction(bigint, boolean, smallint, text) FROM PUBLIC;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_gateway') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON kafka.transactions, kafka.transaction_partitions,
            kafka.transaction_offsets, kafka.aborted_transactions, kafka.transaction_counters TO tablewire_gateway;
        GRANT SELECT ON kafka.open_transactions, kafka.transaction_stats TO tablewire_gateway;
        GRANT EXECUTE ON FUNCTION kafka.abort_transaction(text), kafka.end_transaction(bigint, boolean, smallint, text)
            TO tablewire_gateway;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_reader') THEN
        GRANT SELECT ON kafka.open_transactions, kafka.transaction_stats TO tablewire_reader;
    END IF;
END
$grants$;
"""


def upgrade() -> None:
    for script in (TABLES, FUNCTIONS, VIEWS):
        op.execute(script)
    for target, text in COMMENTS.items():
        quoted = text.replace("'", "''")
        op.execute(f"COMMENT ON {target} IS '{quoted}'")
    op.execute(GRANTS)


def downgrade() -> None:
    raise NotImplementedError("restore a backup: open and aborted transactions have no place in the older schema")
