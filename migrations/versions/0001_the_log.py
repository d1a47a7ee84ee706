"""The log: topics, partitions, messages, producer ids, and the views people look at.

Locks: creates new objects only, so nothing that exists is locked.
Roles: `tablewire_gateway` and `tablewire_reader` get their grants where they exist, and are created
where the migrating role may create roles; on a server where it may not, the owner serves as both.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE kafka.cluster (
    is_only_row boolean PRIMARY KEY DEFAULT true CHECK (is_only_row),
    cluster_uuid uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO kafka.cluster DEFAULT VALUES;

CREATE TABLE kafka.topics (
    topic_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_uuid uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    name text COLLATE "C" NOT NULL UNIQUE,
    partition_count integer NOT NULL CHECK (partition_count > 0),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE kafka.topic_configs (
    topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (topic_id, name)
);

CREATE TABLE kafka.broker_configs (
    broker_id integer,
    name text COLLATE "C" NOT NULL,
    value text NOT NULL,
    UNIQUE NULLS NOT DISTINCT (broker_id, name)
);

-- One short row per partition, updated by every commit: room on the page keeps those updates HOT.
CREATE TABLE kafka.partitions (
    topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition integer NOT NULL CHECK (partition >= 0),
    next_offset bigint NOT NULL DEFAULT 0,
    log_start_offset bigint NOT NULL DEFAULT 0,
    last_stable_offset bigint NOT NULL DEFAULT 0,
    max_timestamp timestamptz,
    deleted_before_offset bigint NOT NULL DEFAULT 0,
    leader_epoch integer NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, partition),
    CHECK (log_start_offset <= next_offset AND last_stable_offset <= next_offset)
) WITH (
    fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Columns stand in order of alignment, so that a row carries no padding.
CREATE TABLE kafka.messages (
    "offset" bigint NOT NULL,
    "timestamp" timestamptz NOT NULL,
    producer_id bigint,
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    sequence integer,
    producer_epoch smallint,
    timestamp_type smallint NOT NULL,
    control_type smallint,
    is_transactional boolean NOT NULL,
    key bytea,
    value bytea,
    header_names text[],
    header_values bytea[],
    PRIMARY KEY (topic_id, partition, "offset")
) PARTITION BY LIST (topic_id);
ALTER TABLE kafka.messages ALTER COLUMN value SET STORAGE EXTERNAL;
CREATE INDEX messages_timestamp ON kafka.messages USING brin ("timestamp") WITH (autosummarize = on);

CREATE TABLE kafka.producer_ids (
    producer_id bigint GENERATED ALWAYS AS IDENTITY (START WITH 1000) PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    last_active_at timestamptz NOT NULL DEFAULT now(),
    transaction_timeout_ms integer,
    producer_epoch smallint NOT NULL DEFAULT 0,
    client_id text,
    transactional_id text
);
CREATE UNIQUE INDEX producer_ids_transactional_id ON kafka.producer_ids (transactional_id)
    WHERE transactional_id IS NOT NULL;
"""

FUNCTIONS = """
CREATE FUNCTION kafka.create_topic_storage(new_topic_id integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    -- ATTACH takes a lighter lock on kafka.messages than CREATE TABLE … PARTITION OF would,
    -- so producers and consumers of other topics go on; the CHECK spares ATTACH its scan.
    EXECUTE format(
        'CREATE TABLE kafka.messages_%1$s (LIKE kafka.messages INCLUDING STORAGE INCLUDING COMMENTS, '
        'CHECK (topic_id = %1$s)) WITH ('
        'autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_insert_threshold = 100000, '
        'autovacuum_freeze_min_age = 0, autovacuum_analyze_scale_factor = 0.05, toast_tuple_target = 8160)',
        new_topic_id);
    EXECUTE format(
        'ALTER TABLE kafka.messages ATTACH PARTITION kafka.messages_%1$s FOR VALUES IN (%1$s)', new_topic_id);
    EXECUTE format('ALTER TABLE kafka.messages_%1$s DROP CONSTRAINT messages_%1$s_topic_id_check', new_topic_id);
END
$function$;

CREATE FUNCTION kafka.drop_topic_storage(old_topic_id integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '250ms' AS $function$
BEGIN
    IF EXISTS (SELECT FROM kafka.topics WHERE topic_id = old_topic_id) THEN
        RAISE EXCEPTION 'topic % still exists', old_topic_id USING HINT = 'delete the topic first';
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS kafka.messages_%s', old_topic_id);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;  -- somebody reads; housekeeping comes back
END
$function$;

CREATE FUNCTION kafka.headers_as_json(names text[], "values" bytea[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $function$
    SELECT coalesce(
        jsonb_agg(jsonb_build_object('name', h.name, 'value', encode(h.value, 'escape')) ORDER BY h.position),
        '[]'::jsonb)
    FROM unnest(names, "values") WITH ORDINALITY AS h (name, value, position)
$function$;
"""

VIEWS = """
CREATE VIEW kafka.committed_messages AS
SELECT t.name AS topic, m.partition, m."offset", m."timestamp", m.key, m.value,
       kafka.headers_as_json(m.header_names, m.header_values) AS headers,
       m.producer_id, m.producer_epoch
FROM kafka.topics t
JOIN kafka.partitions p ON p.topic_id = t.topic_id
JOIN kafka.messages m ON m.topic_id = p.topic_id AND m.partition = p.partition
WHERE m."offset" >= p.log_start_offset AND m."offset" < p.last_stable_offset AND m.control_type IS NULL;

CREATE VIEW kafka.partition_offsets AS
SELECT t.name AS topic, p.partition, p.log_start_offset, p.last_stable_offset, p.next_offset,
       p.next_offset - p.log_start_offset AS offsets_kept,
       p.next_offset - p.last_stable_offset AS offsets_held_back,
       p.max_timestamp, p.leader_epoch
FROM kafka.partitions p JOIN kafka.topics t USING (topic_id);

CREATE VIEW kafka.topic_sizes AS
SELECT t.name AS topic, t.topic_id, t.partition_count,
       (SELECT sum(p.next_offset - p.log_start_offset)::bigint
        FROM kafka.partitions p WHERE p.topic_id = t.topic_id) AS offsets_kept,
       pg_total_relation_size(to_regclass('kafka.messages_' || t.topic_id)) AS size_bytes,
       pg_size_pretty(pg_total_relation_size(to_regclass('kafka.messages_' || t.topic_id))) AS size
FROM kafka.topics t;

CREATE VIEW kafka.partition_locks AS
SELECT t.name AS topic, l.objid::bigint AS partition, l.granted, l.pid, a.application_name, a.state,
       a.query_start, a.wait_event_type, a.wait_event
FROM pg_locks l
JOIN kafka.topics t ON t.topic_id = l.classid::bigint
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database());
"""

COMMENTS = {
    "SCHEMA kafka": "Tablewire: Kafka topics, records, producers and groups as rows. "
    "Start with kafka.committed_messages.",
    "TABLE kafka.cluster": "One row: who this cluster is.",
    "COLUMN kafka.cluster.is_only_row": "Always true: keeps the table at one row.",
    "COLUMN kafka.cluster.cluster_uuid": "The cluster id that clients are told (as base64).",
    "COLUMN kafka.cluster.created_at": "When the schema was created.",
    "TABLE kafka.topics": "Topics. A deleted topic has no row; its storage is dropped soon after.",
    "COLUMN kafka.topics.topic_id": "Short id used in every other table; never reused.",
    "COLUMN kafka.topics.topic_uuid": "The topic id that Kafka clients see; a topic created anew gets a new one.",
    "COLUMN kafka.topics.name": "The topic's name.",
    "COLUMN kafka.topics.partition_count": "How many partitions the topic has; it only grows.",
    "COLUMN kafka.topics.created_at": "When the topic was created.",
    "TABLE kafka.topic_configs": "Settings that differ from the broker's defaults, under Kafka's names.",
    "COLUMN kafka.topic_configs.topic_id": "The topic.",
    "COLUMN kafka.topic_configs.name": "Kafka's name of the setting, such as retention.ms.",
    "COLUMN kafka.topic_configs.value": "The value as text, as Kafka's tools print it.",
    "TABLE kafka.broker_configs": "Settings of brokers that were altered while they ran: the defaults of topics.",
    "COLUMN kafka.broker_configs.broker_id": "The gateway it holds for; null: for all of them.",
    "COLUMN kafka.broker_configs.name": "Kafka's name of the setting, such as log.retention.ms.",
    "COLUMN kafka.broker_configs.value": "The value as text, as Kafka's tools print it.",
    "TABLE kafka.partitions": "The ends of each partition's log. Writers move them in the same commit as the rows.",
    "COLUMN kafka.partitions.topic_id": "The topic.",
    "COLUMN kafka.partitions.partition": "Partition number, from 0.",
    "COLUMN kafka.partitions.next_offset": "The offset the next record gets: the end of the log (high watermark).",
    "COLUMN kafka.partitions.log_start_offset": "The first offset that may be read.",
    "COLUMN kafka.partitions.last_stable_offset": "read_committed readers see offsets below this one.",
    "COLUMN kafka.partitions.max_timestamp": "The largest record timestamp written so far; null while empty.",
    "COLUMN kafka.partitions.deleted_before_offset": "Rows below this offset have been removed from kafka.messages.",
    "COLUMN kafka.partitions.leader_epoch": "Kafka's leader epoch of the partition.",
    "TABLE kafka.messages": "Every record, one row each, written once and never updated. One table per topic: "
    "kafka.messages_<topic_id>. Read kafka.committed_messages for what a read_committed consumer sees.",
    'COLUMN kafka.messages."offset"': "Position in the partition, without gaps when written.",
    'COLUMN kafka.messages."timestamp"': "The record's timestamp, to the millisecond.",
    "COLUMN kafka.messages.producer_id": "The idempotent or transactional producer, see "
    "kafka.producer_ids; null without one.",
    "COLUMN kafka.messages.topic_id": "The topic, see kafka.topics.",
    "COLUMN kafka.messages.partition": "Partition number.",
    "COLUMN kafka.messages.sequence": "The producer's sequence number of this record; null without a producer id.",
    "COLUMN kafka.messages.producer_epoch": "The producer's epoch; null without a producer id.",
    "COLUMN kafka.messages.timestamp_type": "0: set by the producer (CreateTime); "
    "1: set when it was written (LogAppendTime).",
    "COLUMN kafka.messages.control_type": "Null for data; 0 for an abort marker, 1 for a commit marker.",
    "COLUMN kafka.messages.is_transactional": "Whether the record was written inside a transaction.",
    "COLUMN kafka.messages.key": "The record's key; null if it has none.",
    "COLUMN kafka.messages.value": "The record's value; null is a tombstone.",
    "COLUMN kafka.messages.header_names": "Header names in order, duplicates kept; null if there are no headers.",
    "COLUMN kafka.messages.header_values": "Header values in the same order; a value may be null.",
    "TABLE kafka.producer_ids": "Every producer id ever given out.",
    "COLUMN kafka.producer_ids.producer_id": "The id, unique in this database.",
    "COLUMN kafka.producer_ids.created_at": "When it was given out.",
    "COLUMN kafka.producer_ids.last_active_at": "When its owner was last seen (not updated by each produce).",
    "COLUMN kafka.producer_ids.transaction_timeout_ms": "Transaction timeout that the producer asked for; "
    "null if not transactional.",
    "COLUMN kafka.producer_ids.producer_epoch": "The newest epoch; older ones are fenced.",
    "COLUMN kafka.producer_ids.client_id": "client.id of the producer that asked for it.",
    "COLUMN kafka.producer_ids.transactional_id": "transactional.id; null for a producer that is only idempotent.",
    "FUNCTION kafka.create_topic_storage(integer)": "Creates and attaches kafka.messages_<topic_id>. "
    "Called by the gateway.",
    "FUNCTION kafka.drop_topic_storage(integer)": "Drops kafka.messages_<topic_id> of a deleted topic; "
    "false if it is in use.",
    "FUNCTION kafka.headers_as_json(text[], bytea[])": "Headers as [{name, value}, …] in order; values as "
    "encode(value, 'escape'), so decode(value, 'escape') gives the bytes back.",
    "VIEW kafka.committed_messages": "What a read_committed consumer sees, in every topic. Filter by topic, partition "
    "and offset: such a filter uses the primary key.",
    "COLUMN kafka.committed_messages.topic": "The topic's name.",
    "COLUMN kafka.committed_messages.partition": "Partition number.",
    'COLUMN kafka.committed_messages."offset"': "Position in the partition.",
    'COLUMN kafka.committed_messages."timestamp"': "The record's timestamp.",
    "COLUMN kafka.committed_messages.key": "The record's key; convert_from(key, 'UTF8') shows text.",
    "COLUMN kafka.committed_messages.value": "The record's value; convert_from(value, 'UTF8') shows text.",
    "COLUMN kafka.committed_messages.headers": "Headers as [{name, value}, …], see kafka.headers_as_json.",
    "COLUMN kafka.committed_messages.producer_id": "The producer that wrote it, see kafka.producer_ids.",
    "COLUMN kafka.committed_messages.producer_epoch": "The producer's epoch when it wrote it.",
    "VIEW kafka.partition_offsets": "Where each partition's log starts and ends, by topic name.",
    "COLUMN kafka.partition_offsets.topic": "The topic's name.",
    "COLUMN kafka.partition_offsets.partition": "Partition number.",
    "COLUMN kafka.partition_offsets.log_start_offset": "The first offset that may be read.",
    "COLUMN kafka.partition_offsets.last_stable_offset": "read_committed readers see offsets below this one.",
    "COLUMN kafka.partition_offsets.next_offset": "The offset the next record gets.",
    "COLUMN kafka.partition_offsets.offsets_kept": "Offsets between the log's start and its end.",
    "COLUMN kafka.partition_offsets.offsets_held_back": "Offsets that wait for an open transaction to end.",
    "COLUMN kafka.partition_offsets.max_timestamp": "The largest record timestamp written so far.",
    "COLUMN kafka.partition_offsets.leader_epoch": "Kafka's leader epoch of the partition.",
    "VIEW kafka.topic_sizes": "Records and bytes on disk (indexes and TOAST included) of each topic.",
    "COLUMN kafka.topic_sizes.topic": "The topic's name.",
    "COLUMN kafka.topic_sizes.topic_id": "The topic's id: its records are in kafka.messages_<topic_id>.",
    "COLUMN kafka.topic_sizes.partition_count": "How many partitions the topic has.",
    "COLUMN kafka.topic_sizes.offsets_kept": "Offsets that may be read, of all partitions together.",
    "COLUMN kafka.topic_sizes.size_bytes": "Bytes on disk.",
    "COLUMN kafka.topic_sizes.size": "The same for people.",
    "VIEW kafka.partition_locks": "Who holds or waits for the write lock of a partition right now.",
    "COLUMN kafka.partition_locks.topic": "The topic's name.",
    "COLUMN kafka.partition_locks.partition": "Partition number.",
    "COLUMN kafka.partition_locks.granted": "True for the holder, false for who waits.",
    "COLUMN kafka.partition_locks.pid": "The server process, see pg_stat_activity.",
    "COLUMN kafka.partition_locks.application_name": "Which program it serves.",
    "COLUMN kafka.partition_locks.state": "What the process does, see pg_stat_activity.",
    "COLUMN kafka.partition_locks.query_start": "When its statement began.",
    "COLUMN kafka.partition_locks.wait_event_type": "What kind of thing it waits for, if it waits.",
    "COLUMN kafka.partition_locks.wait_event": "What it waits for.",
    "TABLE kafka.alembic_version": "Which migration the schema is at; `tablewire migrate` brings it up to date.",
    "COLUMN kafka.alembic_version.version_num": "The newest migration applied.",
}

# Run as one statement: roles may be missing, and an ordinary role may not create them.
GRANTS = """
DO $grants$
DECLARE
    may_create boolean := (SELECT rolcreaterole OR rolsuper FROM pg_roles WHERE rolname = current_user);
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['tablewire_gateway', 'tablewire_reader'] LOOP
        IF may_create AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_gateway') THEN
        GRANT USAGE ON SCHEMA kafka TO tablewire_gateway;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA kafka TO tablewire_gateway;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA kafka TO tablewire_gateway;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_reader') THEN
        GRANT USAGE ON SCHEMA kafka TO tablewire_reader;
        GRANT SELECT ON kafka.committed_messages, kafka.partition_offsets, kafka.topic_sizes,
            kafka.topics, kafka.topic_configs, kafka.broker_configs, kafka.partitions TO tablewire_reader;
        GRANT EXECUTE ON FUNCTION kafka.headers_as_json(text[], bytea[]) TO tablewire_reader;
    END IF;
    REVOKE ALL ON FUNCTION kafka.create_topic_storage(integer), kafka.drop_topic_storage(integer) FROM PUBLIC;
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
    op.execute("DROP SCHEMA kafka CASCADE")
