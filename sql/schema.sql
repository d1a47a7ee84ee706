-- The schema as the migrations leave it, for reading: pg_dump of a migrated database, without owners and grants.
-- Written by `make schema`; a test keeps it true.

CREATE SCHEMA kafka;

COMMENT ON SCHEMA kafka IS 'Tablewire: Kafka topics, records, producers and groups as rows. Start with kafka.committed_messages.';

CREATE FUNCTION kafka.abort_transaction(aborted_id text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;

COMMENT ON FUNCTION kafka.abort_transaction(aborted_id text) IS 'For an operator: aborts the open transaction of a transactional id and fences its producer.';

CREATE FUNCTION kafka.create_topic_storage(new_topic_id integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
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
$_$;

COMMENT ON FUNCTION kafka.create_topic_storage(new_topic_id integer) IS 'Creates and attaches kafka.messages_<topic_id>. Called by the gateway.';

CREATE FUNCTION kafka.drop_topic_storage(old_topic_id integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '250ms'
    AS $$
BEGIN
    IF EXISTS (SELECT FROM kafka.topics WHERE topic_id = old_topic_id) THEN
        RAISE EXCEPTION 'topic % still exists', old_topic_id USING HINT = 'delete the topic first';
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS kafka.messages_%s', old_topic_id);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;  -- somebody reads; housekeeping comes back
END
$$;

COMMENT ON FUNCTION kafka.drop_topic_storage(old_topic_id integer) IS 'Drops kafka.messages_<topic_id> of a deleted topic; false if it is in use.';

CREATE FUNCTION kafka.end_transaction(ended_producer_id bigint, is_commit boolean, next_epoch smallint, cause text DEFAULT 'client'::text) RETURNS TABLE(topic_id integer, partition integer, next_offset bigint, last_stable_offset bigint, leader_epoch integer, marked_at timestamp with time zone)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
               CASE WHEN is_commit THEN '\x00000001'::bytea ELSE '\x00000000'::bytea END, '\x000000000000'::bytea
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
$$;

COMMENT ON FUNCTION kafka.end_transaction(ended_producer_id bigint, is_commit boolean, next_epoch smallint, cause text) IS 'Commits or aborts the open transaction of a producer in one go: markers, aborted ranges, last stable offsets, consumer offsets, state and epoch. Called by the gateway.';

CREATE FUNCTION kafka.headers_as_json(names text[], "values" bytea[]) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog'
    AS $$
    SELECT coalesce(
        jsonb_agg(jsonb_build_object('name', h.name, 'value', encode(h.value, 'escape')) ORDER BY h.position),
        '[]'::jsonb)
    FROM unnest(names, "values") WITH ORDINALITY AS h (name, value, position)
$$;

COMMENT ON FUNCTION kafka.headers_as_json(names text[], "values" bytea[]) IS 'Headers as [{name, value}, …] in order; values as encode(value, ''escape''), so decode(value, ''escape'') gives the bytes back.';

CREATE TABLE kafka.aborted_transactions (
    producer_id bigint NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    topic_id integer NOT NULL,
    partition integer NOT NULL
);

COMMENT ON TABLE kafka.aborted_transactions IS 'What read_committed readers skip: rows of this producer in this range.';

COMMENT ON COLUMN kafka.aborted_transactions.producer_id IS 'Whose transaction it was.';

COMMENT ON COLUMN kafka.aborted_transactions.first_offset IS 'The first offset it wrote.';

COMMENT ON COLUMN kafka.aborted_transactions.last_offset IS 'The offset of its abort marker.';

COMMENT ON COLUMN kafka.aborted_transactions.topic_id IS 'The topic.';

COMMENT ON COLUMN kafka.aborted_transactions.partition IS 'Partition number.';

CREATE TABLE kafka.alembic_version (
    version_num character varying(32) NOT NULL
);

COMMENT ON TABLE kafka.alembic_version IS 'Which migration the schema is at; `tablewire migrate` brings it up to date.';

COMMENT ON COLUMN kafka.alembic_version.version_num IS 'The newest migration applied.';

CREATE TABLE kafka.broker_configs (
    broker_id integer,
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL
);

COMMENT ON TABLE kafka.broker_configs IS 'Settings of brokers that were altered while they ran: the defaults of topics.';

COMMENT ON COLUMN kafka.broker_configs.broker_id IS 'The gateway it holds for; null: for all of them.';

COMMENT ON COLUMN kafka.broker_configs.name IS 'Kafka''s name of the setting, such as log.retention.ms.';

COMMENT ON COLUMN kafka.broker_configs.value IS 'The value as text, as Kafka''s tools print it.';

CREATE TABLE kafka.brokers (
    epoch bigint NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    heartbeat_at timestamp with time zone DEFAULT now() NOT NULL,
    broker_id integer NOT NULL,
    port integer NOT NULL,
    backend_pid integer NOT NULL,
    host text NOT NULL,
    http_address text,
    CONSTRAINT brokers_broker_id_check CHECK ((broker_id >= 0))
)
WITH (fillfactor='40', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='200', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.brokers IS 'Gateways on this database, live while their heartbeat is fresh.';

COMMENT ON COLUMN kafka.brokers.epoch IS 'New each time a gateway takes this id; a silent one that comes back has lost it.';

COMMENT ON COLUMN kafka.brokers.started_at IS 'When it started.';

COMMENT ON COLUMN kafka.brokers.heartbeat_at IS 'When it last said that it lives.';

COMMENT ON COLUMN kafka.brokers.broker_id IS 'node.id of the gateway.';

COMMENT ON COLUMN kafka.brokers.port IS 'Port that clients are told to connect to.';

COMMENT ON COLUMN kafka.brokers.backend_pid IS 'The database session it last said so through, see pg_stat_activity. Once that has ended, another gateway may take the id.';

COMMENT ON COLUMN kafka.brokers.host IS 'Host that clients are told to connect to.';

COMMENT ON COLUMN kafka.brokers.http_address IS 'Where its metrics and health are served; null if nowhere.';

ALTER TABLE kafka.brokers ALTER COLUMN epoch ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME kafka.brokers_epoch_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE kafka.cluster (
    is_only_row boolean DEFAULT true NOT NULL,
    cluster_uuid uuid DEFAULT gen_random_uuid() NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT cluster_is_only_row_check CHECK (is_only_row)
);

COMMENT ON TABLE kafka.cluster IS 'One row: who this cluster is.';

COMMENT ON COLUMN kafka.cluster.is_only_row IS 'Always true: keeps the table at one row.';

COMMENT ON COLUMN kafka.cluster.cluster_uuid IS 'The cluster id that clients are told (as base64).';

COMMENT ON COLUMN kafka.cluster.created_at IS 'When the schema was created.';

CREATE TABLE kafka.messages (
    "offset" bigint NOT NULL,
    "timestamp" timestamp with time zone NOT NULL,
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
    header_values bytea[]
)
PARTITION BY LIST (topic_id);
ALTER TABLE ONLY kafka.messages ALTER COLUMN value SET STORAGE EXTERNAL;

COMMENT ON TABLE kafka.messages IS 'Every record, one row each, written once and never updated. One table per topic: kafka.messages_<topic_id>. Read kafka.committed_messages for what a read_committed consumer sees.';

COMMENT ON COLUMN kafka.messages."offset" IS 'Position in the partition, without gaps when written.';

COMMENT ON COLUMN kafka.messages."timestamp" IS 'The record''s timestamp, to the millisecond.';

COMMENT ON COLUMN kafka.messages.producer_id IS 'The idempotent or transactional producer, see kafka.producer_ids; null without one.';

COMMENT ON COLUMN kafka.messages.topic_id IS 'The topic, see kafka.topics.';

COMMENT ON COLUMN kafka.messages.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.messages.sequence IS 'The producer''s sequence number of this record; null without a producer id.';

COMMENT ON COLUMN kafka.messages.producer_epoch IS 'The producer''s epoch; null without a producer id.';

COMMENT ON COLUMN kafka.messages.timestamp_type IS '0: set by the producer (CreateTime); 1: set when it was written (LogAppendTime).';

COMMENT ON COLUMN kafka.messages.control_type IS 'Null for data; 0 for an abort marker, 1 for a commit marker.';

COMMENT ON COLUMN kafka.messages.is_transactional IS 'Whether the record was written inside a transaction.';

COMMENT ON COLUMN kafka.messages.key IS 'The record''s key; null if it has none.';

COMMENT ON COLUMN kafka.messages.value IS 'The record''s value; null is a tombstone.';

COMMENT ON COLUMN kafka.messages.header_names IS 'Header names in order, duplicates kept; null if there are no headers.';

COMMENT ON COLUMN kafka.messages.header_values IS 'Header values in the same order; a value may be null.';

CREATE TABLE kafka.partitions (
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    next_offset bigint DEFAULT 0 NOT NULL,
    log_start_offset bigint DEFAULT 0 NOT NULL,
    last_stable_offset bigint DEFAULT 0 NOT NULL,
    max_timestamp timestamp with time zone,
    deleted_before_offset bigint DEFAULT 0 NOT NULL,
    leader_epoch integer DEFAULT 0 NOT NULL,
    producers_dropped_at timestamp with time zone,
    CONSTRAINT partitions_check CHECK (((log_start_offset <= next_offset) AND (last_stable_offset <= next_offset))),
    CONSTRAINT partitions_partition_check CHECK ((partition >= 0))
)
WITH (fillfactor='40', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.partitions IS 'The ends of each partition''s log. Writers move them in the same commit as the rows.';

COMMENT ON COLUMN kafka.partitions.topic_id IS 'The topic.';

COMMENT ON COLUMN kafka.partitions.partition IS 'Partition number, from 0.';

COMMENT ON COLUMN kafka.partitions.next_offset IS 'The offset the next record gets: the end of the log (high watermark).';

COMMENT ON COLUMN kafka.partitions.log_start_offset IS 'The first offset that may be read.';

COMMENT ON COLUMN kafka.partitions.last_stable_offset IS 'read_committed readers see offsets below this one.';

COMMENT ON COLUMN kafka.partitions.max_timestamp IS 'The largest record timestamp written so far; null while empty.';

COMMENT ON COLUMN kafka.partitions.deleted_before_offset IS 'Rows below this offset have been removed from kafka.messages.';

COMMENT ON COLUMN kafka.partitions.leader_epoch IS 'Kafka''s leader epoch of the partition.';

COMMENT ON COLUMN kafka.partitions.producers_dropped_at IS 'When states of producers were last dropped from this partition; a producer older than that may start with any sequence.';

CREATE TABLE kafka.topics (
    topic_id integer NOT NULL,
    topic_uuid uuid DEFAULT gen_random_uuid() NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    partition_count integer NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT topics_partition_count_check CHECK ((partition_count > 0))
);

COMMENT ON TABLE kafka.topics IS 'Topics. A deleted topic has no row; its storage is dropped soon after.';

COMMENT ON COLUMN kafka.topics.topic_id IS 'Short id used in every other table; never reused.';

COMMENT ON COLUMN kafka.topics.topic_uuid IS 'The topic id that Kafka clients see; a topic created anew gets a new one.';

COMMENT ON COLUMN kafka.topics.name IS 'The topic''s name.';

COMMENT ON COLUMN kafka.topics.partition_count IS 'How many partitions the topic has; it only grows.';

COMMENT ON COLUMN kafka.topics.created_at IS 'When the topic was created.';

CREATE VIEW kafka.committed_messages AS
 SELECT t.name AS topic,
    m.partition,
    m."offset",
    m."timestamp",
    m.key,
    m.value,
    kafka.headers_as_json(m.header_names, m.header_values) AS headers,
    m.producer_id,
    m.producer_epoch
   FROM ((kafka.topics t
     JOIN kafka.partitions p ON ((p.topic_id = t.topic_id)))
     JOIN kafka.messages m ON (((m.topic_id = p.topic_id) AND (m.partition = p.partition))))
  WHERE ((m."offset" >= p.log_start_offset) AND (m."offset" < p.last_stable_offset) AND (m.control_type IS NULL) AND ((NOT m.is_transactional) OR COALESCE((( SELECT a.last_offset
           FROM kafka.aborted_transactions a
          WHERE ((a.topic_id = m.topic_id) AND (a.partition = m.partition) AND (a.producer_id = m.producer_id) AND (a.first_offset <= m."offset"))
          ORDER BY a.first_offset DESC
         LIMIT 1) < m."offset"), true)));

COMMENT ON VIEW kafka.committed_messages IS 'What a read_committed consumer sees, in every topic. Filter by topic, partition and offset: such a filter uses the primary key.';

COMMENT ON COLUMN kafka.committed_messages.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.committed_messages.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.committed_messages."offset" IS 'Position in the partition.';

COMMENT ON COLUMN kafka.committed_messages."timestamp" IS 'The record''s timestamp.';

COMMENT ON COLUMN kafka.committed_messages.key IS 'The record''s key; convert_from(key, ''UTF8'') shows text.';

COMMENT ON COLUMN kafka.committed_messages.value IS 'The record''s value; convert_from(value, ''UTF8'') shows text.';

COMMENT ON COLUMN kafka.committed_messages.headers IS 'Headers as [{name, value}, …], see kafka.headers_as_json.';

COMMENT ON COLUMN kafka.committed_messages.producer_id IS 'The producer that wrote it, see kafka.producer_ids.';

COMMENT ON COLUMN kafka.committed_messages.producer_epoch IS 'The producer''s epoch when it wrote it.';

CREATE TABLE kafka.consumer_offsets (
    committed_offset bigint NOT NULL,
    committed_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone,
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    leader_epoch integer,
    group_id text NOT NULL COLLATE pg_catalog."C",
    metadata text DEFAULT ''::text NOT NULL,
    CONSTRAINT consumer_offsets_committed_offset_check CHECK ((committed_offset >= 0)),
    CONSTRAINT consumer_offsets_partition_check CHECK ((partition >= 0))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.consumer_offsets IS 'Committed offsets. See kafka.consumer_lag.';

COMMENT ON COLUMN kafka.consumer_offsets.committed_offset IS 'The next offset the group will read.';

COMMENT ON COLUMN kafka.consumer_offsets.committed_at IS 'When it was committed.';

COMMENT ON COLUMN kafka.consumer_offsets.expires_at IS 'When it expires, where an old client said so; else null, and the group''s state decides.';

COMMENT ON COLUMN kafka.consumer_offsets.topic_id IS 'The topic, see kafka.topics.';

COMMENT ON COLUMN kafka.consumer_offsets.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.consumer_offsets.leader_epoch IS 'Leader epoch of the last record consumed; null if the client gave none.';

COMMENT ON COLUMN kafka.consumer_offsets.group_id IS 'The group, see kafka.groups.';

COMMENT ON COLUMN kafka.consumer_offsets.metadata IS 'Text that the client stored with the offset.';

CREATE TABLE kafka.groups (
    coordinator_epoch bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    state_changed_at timestamp with time zone DEFAULT now() NOT NULL,
    coordinator_id integer,
    generation integer DEFAULT 0 NOT NULL,
    assignment_epoch integer DEFAULT 0 NOT NULL,
    group_id text NOT NULL COLLATE pg_catalog."C",
    group_type text DEFAULT 'classic'::text NOT NULL,
    state text DEFAULT 'Empty'::text NOT NULL,
    protocol_type text,
    protocol_name text,
    leader_id text,
    CONSTRAINT groups_group_type_check CHECK ((group_type = ANY (ARRAY['classic'::text, 'consumer'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.groups IS 'Consumer groups, and groups of Kafka Connect and the like. A group that only stores offsets has a row too.';

COMMENT ON COLUMN kafka.groups.coordinator_epoch IS 'Raised by each gateway that takes the group over; writes made with an older one hit no row.';

COMMENT ON COLUMN kafka.groups.created_at IS 'When the group was first seen.';

COMMENT ON COLUMN kafka.groups.state_changed_at IS 'When it last became what state says; offsets of an empty group expire from then on.';

COMMENT ON COLUMN kafka.groups.coordinator_id IS 'node.id of the gateway that coordinates the group, or did last.';

COMMENT ON COLUMN kafka.groups.generation IS 'Raised by each rebalance: the generation (classic) or the group epoch (consumer).';

COMMENT ON COLUMN kafka.groups.assignment_epoch IS 'Epoch of the target assignment (consumer protocol); 0 for classic groups.';

COMMENT ON COLUMN kafka.groups.group_id IS 'group.id of its members.';

COMMENT ON COLUMN kafka.groups.group_type IS 'classic: members rebalance through a leader; consumer: the gateway assigns (KIP-848).';

COMMENT ON COLUMN kafka.groups.state IS 'Empty, PreparingRebalance, CompletingRebalance, Stable, Assigning or Reconciling.';

COMMENT ON COLUMN kafka.groups.protocol_type IS 'consumer, connect or whatever members said; null if only offsets were committed.';

COMMENT ON COLUMN kafka.groups.protocol_name IS 'The assignor or protocol in use.';

COMMENT ON COLUMN kafka.groups.leader_id IS 'The member that assigns (classic); null for the consumer protocol.';

CREATE VIEW kafka.consumer_lag AS
 SELECT o.group_id,
    t.name AS topic,
    o.partition,
    o.committed_offset,
    p.log_start_offset,
    p.last_stable_offset,
    p.next_offset AS end_offset,
    GREATEST((p.next_offset - o.committed_offset), (0)::bigint) AS lag,
    GREATEST((p.last_stable_offset - o.committed_offset), (0)::bigint) AS stable_lag,
    g.state,
    o.metadata,
    o.leader_epoch,
    o.committed_at
   FROM (((kafka.consumer_offsets o
     JOIN kafka.groups g USING (group_id))
     JOIN kafka.topics t USING (topic_id))
     JOIN kafka.partitions p ON (((p.topic_id = o.topic_id) AND (p.partition = o.partition))));

COMMENT ON VIEW kafka.consumer_lag IS 'How far each group is behind in each partition it committed an offset for.';

COMMENT ON COLUMN kafka.consumer_lag.group_id IS 'The group.';

COMMENT ON COLUMN kafka.consumer_lag.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.consumer_lag.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.consumer_lag.committed_offset IS 'The next offset the group will read.';

COMMENT ON COLUMN kafka.consumer_lag.log_start_offset IS 'The first offset there is.';

COMMENT ON COLUMN kafka.consumer_lag.last_stable_offset IS 'The end as read_committed consumers see it.';

COMMENT ON COLUMN kafka.consumer_lag.end_offset IS 'The end of the log.';

COMMENT ON COLUMN kafka.consumer_lag.lag IS 'Offsets between the committed one and the end of the log.';

COMMENT ON COLUMN kafka.consumer_lag.stable_lag IS 'Offsets between the committed one and the last stable one.';

COMMENT ON COLUMN kafka.consumer_lag.state IS 'State of the group.';

COMMENT ON COLUMN kafka.consumer_lag.metadata IS 'Text that the client stored with the offset.';

COMMENT ON COLUMN kafka.consumer_lag.leader_epoch IS 'Leader epoch that was committed; null if none.';

COMMENT ON COLUMN kafka.consumer_lag.committed_at IS 'When the offset was committed.';

CREATE TABLE kafka.deleted_topics (
    name text NOT NULL COLLATE pg_catalog."C",
    deleted_at timestamp with time zone DEFAULT now() NOT NULL
);

COMMENT ON TABLE kafka.deleted_topics IS 'Names that topics had not long ago: producers of such a topic number on if it is created anew.';

COMMENT ON COLUMN kafka.deleted_topics.name IS 'The name.';

COMMENT ON COLUMN kafka.deleted_topics.deleted_at IS 'When a topic of that name was last deleted.';

CREATE TABLE kafka.group_members (
    joined_at timestamp with time zone DEFAULT now() NOT NULL,
    session_timeout_ms integer NOT NULL,
    rebalance_timeout_ms integer NOT NULL,
    member_epoch integer DEFAULT 0 NOT NULL,
    previous_member_epoch integer DEFAULT 0 NOT NULL,
    group_id text NOT NULL COLLATE pg_catalog."C",
    member_id text NOT NULL COLLATE pg_catalog."C",
    instance_id text COLLATE pg_catalog."C",
    client_id text DEFAULT ''::text NOT NULL,
    client_host text DEFAULT ''::text NOT NULL,
    rack_id text,
    member_state text,
    subscribed_topics text[],
    subscribed_regex text,
    server_assignor text,
    protocol_names text[],
    protocol_metadata bytea[],
    assignment bytea,
    assigned_partitions jsonb,
    revoking_partitions jsonb,
    target_partitions jsonb
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.group_members IS 'Members of groups as they were when their group was last stable.';

COMMENT ON COLUMN kafka.group_members.joined_at IS 'When the member was first written.';

COMMENT ON COLUMN kafka.group_members.session_timeout_ms IS 'Silent for longer than this, the member is removed.';

COMMENT ON COLUMN kafka.group_members.rebalance_timeout_ms IS 'How long the member may take to rejoin or to give up partitions.';

COMMENT ON COLUMN kafka.group_members.member_epoch IS 'Epoch the member has reached (consumer protocol).';

COMMENT ON COLUMN kafka.group_members.previous_member_epoch IS 'Epoch before that one (consumer protocol).';

COMMENT ON COLUMN kafka.group_members.group_id IS 'The group, see kafka.groups.';

COMMENT ON COLUMN kafka.group_members.member_id IS 'Id of the member, unique in its group.';

COMMENT ON COLUMN kafka.group_members.instance_id IS 'group.instance.id of a static member; null for a dynamic one.';

COMMENT ON COLUMN kafka.group_members.client_id IS 'client.id of the member.';

COMMENT ON COLUMN kafka.group_members.client_host IS 'Address the member connected from.';

COMMENT ON COLUMN kafka.group_members.rack_id IS 'client.rack of the member.';

COMMENT ON COLUMN kafka.group_members.member_state IS 'Where the member is in reconciling its assignment (consumer protocol).';

COMMENT ON COLUMN kafka.group_members.subscribed_topics IS 'Topics the member subscribed to by name; null where unknown.';

COMMENT ON COLUMN kafka.group_members.subscribed_regex IS 'Topics the member subscribed to by pattern (consumer protocol).';

COMMENT ON COLUMN kafka.group_members.server_assignor IS 'Assignor the member prefers (consumer protocol).';

COMMENT ON COLUMN kafka.group_members.protocol_names IS 'Protocols the member supports, best first (classic).';

COMMENT ON COLUMN kafka.group_members.protocol_metadata IS 'What the member sent with each of them.';

COMMENT ON COLUMN kafka.group_members.assignment IS 'What the leader assigned to the member, as bytes (classic).';

COMMENT ON COLUMN kafka.group_members.assigned_partitions IS 'Partitions by topic id that the member owns (consumer protocol).';

COMMENT ON COLUMN kafka.group_members.revoking_partitions IS 'Partitions by topic id that the member has yet to give up.';

COMMENT ON COLUMN kafka.group_members.target_partitions IS 'Partitions by topic id that the member is to own.';

CREATE TABLE kafka.transaction_offsets (
    producer_id bigint NOT NULL,
    committed_offset bigint NOT NULL,
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    leader_epoch integer,
    group_id text NOT NULL COLLATE pg_catalog."C",
    metadata text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.transaction_offsets IS 'Consumer offsets that become true when their transaction commits.';

COMMENT ON COLUMN kafka.transaction_offsets.producer_id IS 'Whose transaction.';

COMMENT ON COLUMN kafka.transaction_offsets.committed_offset IS 'The offset to commit.';

COMMENT ON COLUMN kafka.transaction_offsets.topic_id IS 'The topic.';

COMMENT ON COLUMN kafka.transaction_offsets.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.transaction_offsets.leader_epoch IS 'Leader epoch of the last record consumed; null if unknown.';

COMMENT ON COLUMN kafka.transaction_offsets.group_id IS 'The consumer group.';

COMMENT ON COLUMN kafka.transaction_offsets.metadata IS 'Text that the consumer keeps with the offset.';

CREATE TABLE kafka.transaction_partitions (
    producer_id bigint NOT NULL,
    first_offset bigint,
    last_offset bigint,
    topic_id integer NOT NULL,
    partition integer NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.transaction_partitions IS 'The partitions of each open transaction.';

COMMENT ON COLUMN kafka.transaction_partitions.producer_id IS 'Whose transaction.';

COMMENT ON COLUMN kafka.transaction_partitions.first_offset IS 'First offset it wrote there; null while it wrote nothing.';

COMMENT ON COLUMN kafka.transaction_partitions.last_offset IS 'Last offset it wrote there.';

COMMENT ON COLUMN kafka.transaction_partitions.topic_id IS 'The topic.';

COMMENT ON COLUMN kafka.transaction_partitions.partition IS 'Partition number.';

CREATE TABLE kafka.transactions (
    producer_id bigint NOT NULL,
    started_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    transaction_timeout_ms integer NOT NULL,
    producer_epoch smallint NOT NULL,
    previous_epoch smallint,
    ended_epoch smallint,
    previous_producer_id bigint,
    speaker_gateway bigint,
    speaker_connection bigint,
    transactional_id text NOT NULL COLLATE pg_catalog."C",
    state text DEFAULT 'Empty'::text NOT NULL,
    client_id text,
    CONSTRAINT transactions_state_check CHECK ((state = ANY (ARRAY['Empty'::text, 'Ongoing'::text, 'CompleteCommit'::text, 'CompleteAbort'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.transactions IS 'The open or last transaction of each transactional id.';

COMMENT ON COLUMN kafka.transactions.producer_id IS 'The producer id that the transactional id has now.';

COMMENT ON COLUMN kafka.transactions.started_at IS 'When this transaction began; null while none is open.';

COMMENT ON COLUMN kafka.transactions.updated_at IS 'When the row last changed.';

COMMENT ON COLUMN kafka.transactions.transaction_timeout_ms IS 'An open transaction is aborted after this long.';

COMMENT ON COLUMN kafka.transactions.producer_epoch IS 'The newest epoch; older instances are fenced.';

COMMENT ON COLUMN kafka.transactions.previous_epoch IS 'The epoch before, if its owner may ask for the newest: nobody else was told it.';

COMMENT ON COLUMN kafka.transactions.ended_epoch IS 'The epoch in which the client ended its last transaction: a retry is recognised by it.';

COMMENT ON COLUMN kafka.transactions.previous_producer_id IS 'The producer id before the last one ran out of epochs.';

COMMENT ON COLUMN kafka.transactions.speaker_gateway IS 'Process of the gateway over which a classic client last spoke about it.';

COMMENT ON COLUMN kafka.transactions.speaker_connection IS 'Number of that connection there: requests over older ones are refused.';

COMMENT ON COLUMN kafka.transactions.transactional_id IS 'transactional.id of the producer.';

COMMENT ON COLUMN kafka.transactions.state IS 'Empty, Ongoing, CompleteCommit or CompleteAbort.';

COMMENT ON COLUMN kafka.transactions.client_id IS 'client.id of the producer.';

CREATE VIEW kafka.open_transactions AS
 SELECT transactional_id,
    producer_id,
    producer_epoch,
    client_id,
    started_at,
    (now() - started_at) AS age,
    transaction_timeout_ms,
    ( SELECT jsonb_agg(jsonb_build_object('topic', t.name, 'partition', tp.partition, 'first_offset', tp.first_offset, 'last_offset', tp.last_offset, 'holds_last_stable_offset', (tp.first_offset = p.last_stable_offset)) ORDER BY t.name, tp.partition) AS jsonb_agg
           FROM ((kafka.transaction_partitions tp
             JOIN kafka.topics t ON ((t.topic_id = tp.topic_id)))
             JOIN kafka.partitions p ON (((p.topic_id = tp.topic_id) AND (p.partition = tp.partition))))
          WHERE (tp.producer_id = tx.producer_id)) AS partitions,
    ( SELECT count(*) AS count
           FROM kafka.transaction_offsets o
          WHERE (o.producer_id = tx.producer_id)) AS offsets_waiting
   FROM kafka.transactions tx
  WHERE (state = 'Ongoing'::text);

COMMENT ON VIEW kafka.open_transactions IS 'Open transactions with their age, and whose last stable offset they hold back.';

COMMENT ON COLUMN kafka.open_transactions.transactional_id IS 'transactional.id of the producer.';

COMMENT ON COLUMN kafka.open_transactions.producer_id IS 'Its producer id.';

COMMENT ON COLUMN kafka.open_transactions.producer_epoch IS 'Its epoch.';

COMMENT ON COLUMN kafka.open_transactions.client_id IS 'Its client.id.';

COMMENT ON COLUMN kafka.open_transactions.started_at IS 'When the transaction began.';

COMMENT ON COLUMN kafka.open_transactions.age IS 'How long ago that was.';

COMMENT ON COLUMN kafka.open_transactions.transaction_timeout_ms IS 'It is aborted when it gets older than this.';

COMMENT ON COLUMN kafka.open_transactions.partitions IS 'Its partitions, with the offsets it wrote and whether it is the one that holds back the last stable offset.';

COMMENT ON COLUMN kafka.open_transactions.offsets_waiting IS 'How many consumer offsets become true with it.';

CREATE VIEW kafka.partition_locks AS
 SELECT t.name AS topic,
    (l.objid)::bigint AS partition,
    l.granted,
    l.pid,
    a.application_name,
    a.state,
    a.query_start,
    a.wait_event_type,
    a.wait_event
   FROM ((pg_locks l
     JOIN kafka.topics t ON ((t.topic_id = (l.classid)::bigint)))
     LEFT JOIN pg_stat_activity a ON ((a.pid = l.pid)))
  WHERE ((l.locktype = 'advisory'::text) AND (l.objsubid = 1) AND (l.database = ( SELECT pg_database.oid
           FROM pg_database
          WHERE (pg_database.datname = current_database()))));

COMMENT ON VIEW kafka.partition_locks IS 'Who holds or waits for the write lock of a partition right now.';

COMMENT ON COLUMN kafka.partition_locks.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.partition_locks.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.partition_locks.granted IS 'True for the holder, false for who waits.';

COMMENT ON COLUMN kafka.partition_locks.pid IS 'The server process, see pg_stat_activity.';

COMMENT ON COLUMN kafka.partition_locks.application_name IS 'Which program it serves.';

COMMENT ON COLUMN kafka.partition_locks.state IS 'What the process does, see pg_stat_activity.';

COMMENT ON COLUMN kafka.partition_locks.query_start IS 'When its statement began.';

COMMENT ON COLUMN kafka.partition_locks.wait_event_type IS 'What kind of thing it waits for, if it waits.';

COMMENT ON COLUMN kafka.partition_locks.wait_event IS 'What it waits for.';

CREATE VIEW kafka.partition_offsets AS
 SELECT t.name AS topic,
    p.partition,
    p.log_start_offset,
    p.last_stable_offset,
    p.next_offset,
    (p.next_offset - p.log_start_offset) AS offsets_kept,
    (p.next_offset - p.last_stable_offset) AS offsets_held_back,
    p.max_timestamp,
    p.leader_epoch
   FROM (kafka.partitions p
     JOIN kafka.topics t USING (topic_id));

COMMENT ON VIEW kafka.partition_offsets IS 'Where each partition''s log starts and ends, by topic name.';

COMMENT ON COLUMN kafka.partition_offsets.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.partition_offsets.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.partition_offsets.log_start_offset IS 'The first offset that may be read.';

COMMENT ON COLUMN kafka.partition_offsets.last_stable_offset IS 'read_committed readers see offsets below this one.';

COMMENT ON COLUMN kafka.partition_offsets.next_offset IS 'The offset the next record gets.';

COMMENT ON COLUMN kafka.partition_offsets.offsets_kept IS 'Offsets between the log''s start and its end.';

COMMENT ON COLUMN kafka.partition_offsets.offsets_held_back IS 'Offsets that wait for an open transaction to end.';

COMMENT ON COLUMN kafka.partition_offsets.max_timestamp IS 'The largest record timestamp written so far.';

COMMENT ON COLUMN kafka.partition_offsets.leader_epoch IS 'Kafka''s leader epoch of the partition.';

CREATE TABLE kafka.producer_ids (
    producer_id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    last_active_at timestamp with time zone DEFAULT now() NOT NULL,
    transaction_timeout_ms integer,
    producer_epoch smallint DEFAULT 0 NOT NULL,
    client_id text,
    transactional_id text
);

COMMENT ON TABLE kafka.producer_ids IS 'Every producer id ever given out.';

COMMENT ON COLUMN kafka.producer_ids.producer_id IS 'The id, unique in this database.';

COMMENT ON COLUMN kafka.producer_ids.created_at IS 'When it was given out.';

COMMENT ON COLUMN kafka.producer_ids.last_active_at IS 'When its owner was last seen (not updated by each produce).';

COMMENT ON COLUMN kafka.producer_ids.transaction_timeout_ms IS 'Transaction timeout that the producer asked for; null if not transactional.';

COMMENT ON COLUMN kafka.producer_ids.producer_epoch IS 'The newest epoch; older ones are fenced.';

COMMENT ON COLUMN kafka.producer_ids.client_id IS 'client.id of the producer that asked for it.';

COMMENT ON COLUMN kafka.producer_ids.transactional_id IS 'transactional.id; null for a producer that is only idempotent.';

ALTER TABLE kafka.producer_ids ALTER COLUMN producer_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME kafka.producer_ids_producer_id_seq
    START WITH 1000
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE kafka.producer_sequences (
    producer_id bigint NOT NULL,
    run_length bigint NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    topic_id integer NOT NULL,
    partition_id integer NOT NULL,
    last_sequence integer NOT NULL,
    producer_epoch smallint NOT NULL,
    first_sequences integer[] NOT NULL,
    last_sequences integer[] NOT NULL,
    base_offsets bigint[] NOT NULL,
    timestamps_ms bigint[] NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.producer_sequences IS 'What each idempotent producer last wrote to each partition. See kafka.producer_state.';

COMMENT ON COLUMN kafka.producer_sequences.producer_id IS 'The producer, see kafka.producer_ids.';

COMMENT ON COLUMN kafka.producer_sequences.run_length IS 'How many records in a row up to last_sequence are known to be written.';

COMMENT ON COLUMN kafka.producer_sequences.updated_at IS 'When the producer last wrote here.';

COMMENT ON COLUMN kafka.producer_sequences.topic_id IS 'The topic, see kafka.topics.';

COMMENT ON COLUMN kafka.producer_sequences.partition_id IS 'Partition number.';

COMMENT ON COLUMN kafka.producer_sequences.last_sequence IS 'Sequence number of the last record written.';

COMMENT ON COLUMN kafka.producer_sequences.producer_epoch IS 'The epoch it was written in; older ones are refused.';

COMMENT ON COLUMN kafka.producer_sequences.first_sequences IS 'First sequence of each of the newest five batches, oldest first.';

COMMENT ON COLUMN kafka.producer_sequences.last_sequences IS 'Last sequence of each of them.';

COMMENT ON COLUMN kafka.producer_sequences.base_offsets IS 'Offset of the first record of each of them: what a retry is answered.';

COMMENT ON COLUMN kafka.producer_sequences.timestamps_ms IS 'Largest timestamp of each of them, in milliseconds since 1970.';

CREATE VIEW kafka.producer_state AS
 SELECT s.producer_id,
    p.client_id,
    p.transactional_id,
    t.name AS topic,
    s.partition_id AS partition,
    s.producer_epoch,
    s.last_sequence,
    ( SELECT jsonb_agg(jsonb_build_object('first_sequence', b.first_sequence, 'last_sequence', b.last_sequence, 'base_offset', b.base_offset, 'timestamp', ('1970-01-01 00:00:00+00'::timestamp with time zone + ((b.timestamp_ms)::double precision * '00:00:00.001'::interval))) ORDER BY b."position") AS jsonb_agg
           FROM UNNEST(s.first_sequences, s.last_sequences, s.base_offsets, s.timestamps_ms) WITH ORDINALITY b(first_sequence, last_sequence, base_offset, timestamp_ms, "position")) AS batches,
    s.updated_at,
    (now() - s.updated_at) AS age
   FROM ((kafka.producer_sequences s
     JOIN kafka.topics t USING (topic_id))
     LEFT JOIN kafka.producer_ids p USING (producer_id));

COMMENT ON VIEW kafka.producer_state IS 'Who writes where: epoch, last sequence, the newest five batches, and how long ago.';

COMMENT ON COLUMN kafka.producer_state.producer_id IS 'The producer, see kafka.producer_ids.';

COMMENT ON COLUMN kafka.producer_state.client_id IS 'client.id of the producer.';

COMMENT ON COLUMN kafka.producer_state.transactional_id IS 'transactional.id; null for a producer that is only idempotent.';

COMMENT ON COLUMN kafka.producer_state.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.producer_state.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.producer_state.producer_epoch IS 'The epoch it last wrote in.';

COMMENT ON COLUMN kafka.producer_state.last_sequence IS 'Sequence number of the last record written.';

COMMENT ON COLUMN kafka.producer_state.batches IS 'The newest five batches: sequences, offset and timestamp, oldest first.';

COMMENT ON COLUMN kafka.producer_state.updated_at IS 'When it last wrote here.';

COMMENT ON COLUMN kafka.producer_state.age IS 'How long ago that was.';

CREATE TABLE kafka.topic_configs (
    topic_id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL
);

COMMENT ON TABLE kafka.topic_configs IS 'Settings that differ from the broker''s defaults, under Kafka''s names.';

COMMENT ON COLUMN kafka.topic_configs.topic_id IS 'The topic.';

COMMENT ON COLUMN kafka.topic_configs.name IS 'Kafka''s name of the setting, such as retention.ms.';

COMMENT ON COLUMN kafka.topic_configs.value IS 'The value as text, as Kafka''s tools print it.';

CREATE VIEW kafka.topic_sizes AS
 SELECT name AS topic,
    topic_id,
    partition_count,
    ( SELECT (sum((p.next_offset - p.log_start_offset)))::bigint AS sum
           FROM kafka.partitions p
          WHERE (p.topic_id = t.topic_id)) AS offsets_kept,
    pg_total_relation_size(to_regclass(('kafka.messages_'::text || topic_id))) AS size_bytes,
    pg_size_pretty(pg_total_relation_size(to_regclass(('kafka.messages_'::text || topic_id)))) AS size
   FROM kafka.topics t;

COMMENT ON VIEW kafka.topic_sizes IS 'Records and bytes on disk (indexes and TOAST included) of each topic.';

COMMENT ON COLUMN kafka.topic_sizes.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.topic_sizes.topic_id IS 'The topic''s id: its records are in kafka.messages_<topic_id>.';

COMMENT ON COLUMN kafka.topic_sizes.partition_count IS 'How many partitions the topic has.';

COMMENT ON COLUMN kafka.topic_sizes.offsets_kept IS 'Offsets that may be read, of all partitions together.';

COMMENT ON COLUMN kafka.topic_sizes.size_bytes IS 'Bytes on disk.';

COMMENT ON COLUMN kafka.topic_sizes.size IS 'The same for people.';

ALTER TABLE kafka.topics ALTER COLUMN topic_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME kafka.topics_topic_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE kafka.transaction_counters (
    slot integer NOT NULL,
    started bigint DEFAULT 0 NOT NULL,
    committed bigint DEFAULT 0 NOT NULL,
    aborted bigint DEFAULT 0 NOT NULL,
    timed_out bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='40', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='200');

COMMENT ON TABLE kafka.transaction_counters IS 'Counts behind kafka.transaction_stats, in slots that do not wait for each other.';

COMMENT ON COLUMN kafka.transaction_counters.slot IS '0 to 15, by database session.';

COMMENT ON COLUMN kafka.transaction_counters.started IS 'Transactions begun.';

COMMENT ON COLUMN kafka.transaction_counters.committed IS 'Transactions committed.';

COMMENT ON COLUMN kafka.transaction_counters.aborted IS 'Transactions aborted, those below included.';

COMMENT ON COLUMN kafka.transaction_counters.timed_out IS 'Transactions aborted because their time was over.';

CREATE VIEW kafka.transaction_stats AS
 SELECT (sum(started))::bigint AS started,
    (sum(committed))::bigint AS committed,
    (sum(aborted))::bigint AS aborted,
    (sum(timed_out))::bigint AS timed_out,
    ( SELECT count(*) AS count
           FROM kafka.transactions
          WHERE (transactions.state = 'Ongoing'::text)) AS active,
    ( SELECT max((now() - transactions.started_at)) AS max
           FROM kafka.transactions
          WHERE (transactions.state = 'Ongoing'::text)) AS oldest_open_age
   FROM kafka.transaction_counters c;

COMMENT ON VIEW kafka.transaction_stats IS 'How many transactions began, were committed, aborted or timed out, and are open now.';

COMMENT ON COLUMN kafka.transaction_stats.started IS 'Transactions begun since the schema was made.';

COMMENT ON COLUMN kafka.transaction_stats.committed IS 'Transactions committed.';

COMMENT ON COLUMN kafka.transaction_stats.aborted IS 'Transactions aborted, those that timed out included.';

COMMENT ON COLUMN kafka.transaction_stats.timed_out IS 'Transactions aborted because their time was over.';

COMMENT ON COLUMN kafka.transaction_stats.active IS 'Transactions that are open now.';

COMMENT ON COLUMN kafka.transaction_stats.oldest_open_age IS 'Age of the oldest open one; null if there is none.';

ALTER TABLE ONLY kafka.aborted_transactions
    ADD CONSTRAINT aborted_transactions_pkey PRIMARY KEY (topic_id, partition, last_offset);

ALTER TABLE ONLY kafka.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);

ALTER TABLE ONLY kafka.broker_configs
    ADD CONSTRAINT broker_configs_broker_id_name_key UNIQUE NULLS NOT DISTINCT (broker_id, name);

ALTER TABLE ONLY kafka.brokers
    ADD CONSTRAINT brokers_pkey PRIMARY KEY (broker_id);

ALTER TABLE ONLY kafka.cluster
    ADD CONSTRAINT cluster_pkey PRIMARY KEY (is_only_row);

ALTER TABLE ONLY kafka.consumer_offsets
    ADD CONSTRAINT consumer_offsets_pkey PRIMARY KEY (group_id, topic_id, partition);

ALTER TABLE ONLY kafka.deleted_topics
    ADD CONSTRAINT deleted_topics_pkey PRIMARY KEY (name);

ALTER TABLE ONLY kafka.group_members
    ADD CONSTRAINT group_members_pkey PRIMARY KEY (group_id, member_id);

ALTER TABLE ONLY kafka.groups
    ADD CONSTRAINT groups_pkey PRIMARY KEY (group_id);

ALTER TABLE ONLY kafka.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (topic_id, partition, "offset");

ALTER TABLE ONLY kafka.partitions
    ADD CONSTRAINT partitions_pkey PRIMARY KEY (topic_id, partition);

ALTER TABLE ONLY kafka.producer_ids
    ADD CONSTRAINT producer_ids_pkey PRIMARY KEY (producer_id);

ALTER TABLE ONLY kafka.producer_sequences
    ADD CONSTRAINT producer_sequences_pkey PRIMARY KEY (producer_id, topic_id, partition_id);

ALTER TABLE ONLY kafka.topic_configs
    ADD CONSTRAINT topic_configs_pkey PRIMARY KEY (topic_id, name);

ALTER TABLE ONLY kafka.topics
    ADD CONSTRAINT topics_name_key UNIQUE (name);

ALTER TABLE ONLY kafka.topics
    ADD CONSTRAINT topics_pkey PRIMARY KEY (topic_id);

ALTER TABLE ONLY kafka.topics
    ADD CONSTRAINT topics_topic_uuid_key UNIQUE (topic_uuid);

ALTER TABLE ONLY kafka.transaction_counters
    ADD CONSTRAINT transaction_counters_pkey PRIMARY KEY (slot);

ALTER TABLE ONLY kafka.transaction_offsets
    ADD CONSTRAINT transaction_offsets_pkey PRIMARY KEY (producer_id, group_id, topic_id, partition);

ALTER TABLE ONLY kafka.transaction_partitions
    ADD CONSTRAINT transaction_partitions_pkey PRIMARY KEY (producer_id, topic_id, partition);

ALTER TABLE ONLY kafka.transactions
    ADD CONSTRAINT transactions_pkey PRIMARY KEY (transactional_id);

ALTER TABLE ONLY kafka.transactions
    ADD CONSTRAINT transactions_producer_id_key UNIQUE (producer_id);

CREATE INDEX aborted_transactions_producer ON kafka.aborted_transactions USING btree (topic_id, partition, producer_id, first_offset);

CREATE INDEX consumer_offsets_partition ON kafka.consumer_offsets USING btree (topic_id, partition);

CREATE INDEX messages_timestamp ON ONLY kafka.messages USING brin ("timestamp") WITH (autosummarize='on');

CREATE UNIQUE INDEX producer_ids_transactional_id ON kafka.producer_ids USING btree (transactional_id) WHERE (transactional_id IS NOT NULL);

CREATE INDEX producer_sequences_partition ON kafka.producer_sequences USING btree (topic_id, partition_id);

CREATE INDEX transaction_offsets_group ON kafka.transaction_offsets USING btree (group_id, topic_id, partition);

CREATE INDEX transaction_partitions_partition ON kafka.transaction_partitions USING btree (topic_id, partition);

CREATE INDEX transactions_open ON kafka.transactions USING btree (started_at) WHERE (state = 'Ongoing'::text);

ALTER TABLE ONLY kafka.aborted_transactions
    ADD CONSTRAINT aborted_transactions_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.consumer_offsets
    ADD CONSTRAINT consumer_offsets_group_id_fkey FOREIGN KEY (group_id) REFERENCES kafka.groups(group_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.consumer_offsets
    ADD CONSTRAINT consumer_offsets_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.group_members
    ADD CONSTRAINT group_members_group_id_fkey FOREIGN KEY (group_id) REFERENCES kafka.groups(group_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.partitions
    ADD CONSTRAINT partitions_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.producer_sequences
    ADD CONSTRAINT producer_sequences_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.topic_configs
    ADD CONSTRAINT topic_configs_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.transaction_offsets
    ADD CONSTRAINT transaction_offsets_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.transaction_partitions
    ADD CONSTRAINT transaction_partitions_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;
