"""Deliveries to workers: leases, attempts and retries per record and group, dead letters, appending records from SQL.

Locks: share row exclusive on kafka.topics and kafka.groups for an instant (foreign keys point at them); else new
objects.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TABLES = """
-- Changed by every take and every settlement: room on the page keeps those updates HOT.
CREATE TABLE kafka.delivery_partitions (
    start_offset bigint NOT NULL,
    end_offset bigint NOT NULL,
    topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition integer NOT NULL,
    group_id text COLLATE "C" NOT NULL REFERENCES kafka.groups ON DELETE CASCADE,
    PRIMARY KEY (group_id, topic_id, partition),
    CHECK (start_offset <= end_offset)
) WITH (
    fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE kafka.deliveries (
    "offset" bigint NOT NULL,
    available_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    leased_until timestamptz,
    first_delivered_at timestamptz,
    last_delivered_at timestamptz,
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    group_id text COLLATE "C" NOT NULL,
    state text NOT NULL CHECK (state IN ('available', 'acquired', 'acknowledged', 'archived')),
    worker text,
    last_error text,
    PRIMARY KEY (group_id, topic_id, partition, "offset"),
    FOREIGN KEY (group_id, topic_id, partition) REFERENCES kafka.delivery_partitions ON DELETE CASCADE
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX deliveries_unsettled ON kafka.deliveries (group_id, topic_id, partition, "offset")
    WHERE state IN ('available', 'acquired');

CREATE TABLE kafka.dead_letters (
    dead_letter_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    source_offset bigint NOT NULL,
    dlq_offset bigint,
    redriven_offset bigint,
    first_delivered_at timestamptz,
    last_delivered_at timestamptz,
    died_at timestamptz NOT NULL DEFAULT now(),
    redriven_at timestamptz,
    source_partition integer NOT NULL,
    dlq_topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    dlq_partition integer,
    attempts integer NOT NULL,
    copies integer NOT NULL DEFAULT 1,
    group_id text COLLATE "C" NOT NULL,
    source_topic text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    idempotency_key text COLLATE "C",
    state text NOT NULL DEFAULT 'dead' CHECK (state IN ('dead', 'redriven')),
    last_error text NOT NULL
);
CREATE UNIQUE INDEX dead_letters_identity ON kafka.dead_letters (group_id, source_topic, tenant, idempotency_key)
    WHERE state = 'dead' AND idempotency_key IS NOT NULL;
CREATE INDEX dead_letters_place ON kafka.dead_letters (dlq_topic_id, dlq_partition, dlq_offset);

-- Sixteen rows instead of one, so that workers do not wait for each other.
CREATE TABLE kafka.delivery_counters (
    slot integer PRIMARY KEY,
    retried bigint NOT NULL DEFAULT 0,
    timed_out bigint NOT NULL DEFAULT 0,
    dead_lettered bigint NOT NULL DEFAULT 0,
    redriven bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
INSERT INTO kafka.delivery_counters (slot) SELECT generate_series(0, 15);
"""

FUNCTIONS = """
CREATE FUNCTION kafka.append_records(
    topics text[], partitions integer[], keys bytea[], "values" bytea[],
    header_counts integer[] DEFAULT NULL, header_names text[] DEFAULT NULL, header_values bytea[] DEFAULT NULL
) RETURNS TABLE (topic text, partition integer, "offset" bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    wrong record;
    appended_at timestamptz := date_trunc('milliseconds', clock_timestamp());
BEGIN
    IF cardinality(topics) <> cardinality(partitions) OR cardinality(topics) <> cardinality(keys)
       OR cardinality(topics) <> cardinality("values") OR cardinality(topics) <> cardinality(header_counts)
       OR (SELECT sum(c) FROM unnest(header_counts) AS c) <> coalesce(cardinality(header_names), 0)
       OR coalesce(cardinality(header_names), 0) <> coalesce(cardinality(header_values), 0) THEN
        RAISE EXCEPTION 'every record needs a topic, a partition, a key, a value and a number of headers'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT n.topic, n.partition, p.topic_id, n.key IS NULL AND c.value LIKE '%compact%' AS lacks_key INTO wrong
    FROM unnest(topics, partitions, keys) AS n (topic, partition, key)
    LEFT JOIN kafka.topics t ON t.name = n.topic
    LEFT JOIN kafka.partitions p ON p.topic_id = t.topic_id AND p.partition = n.partition
    LEFT JOIN kafka.topic_configs c ON c.topic_id = t.topic_id AND c.name = 'cleanup.policy'
    WHERE p.topic_id IS NULL OR (n.key IS NULL AND c.value LIKE '%compact%') LIMIT 1;
    IF wrong.topic IS NOT NULL THEN
        IF wrong.lacks_key THEN
            RAISE EXCEPTION 'topic % is compacted: a record needs a key', wrong.topic USING ERRCODE = 'TW003';
        END IF;
        RAISE EXCEPTION 'there is no partition % of topic %', wrong.partition, wrong.topic USING ERRCODE = 'TW003';
    END IF;

    -- Lock order: partitions sorted, as every writer takes them.
    PERFORM pg_advisory_xact_lock((held.topic_id::bigint << 32) | held.partition)
    FROM (SELECT DISTINCT t.topic_id, n.partition FROM unnest(topics, partitions) AS n (topic, partition)
          JOIN kafka.topics t ON t.name = n.topic ORDER BY t.topic_id, n.partition) AS held;

    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT n.place, t.topic_id, n.topic, n.partition, n.key, n.value, coalesce(n.headers, 0) AS headers,
               sum(coalesce(n.headers, 0)) OVER (ORDER BY n.place) AS last_header,
               row_number() OVER (PARTITION BY t.topic_id, n.partition ORDER BY n.place) AS number,
               coalesce(c.value, 'CreateTime') = 'LogAppendTime' AS uses_log_append_time
        FROM unnest(topics, partitions, keys, "values", header_counts) WITH ORDINALITY
             AS n (topic, partition, key, value, headers, place)
        JOIN kafka.topics t ON t.name = n.topic
        LEFT JOIN kafka.topic_configs c ON c.topic_id = t.topic_id AND c.name = 'message.timestamp.type'
    ), counted AS (
        SELECT g.topic_id, g.partition, count(*) AS records FROM given g GROUP BY g.topic_id, g.partition
    ), moved AS (
        UPDATE kafka.partitions p
        SET next_offset = p.next_offset + c.records,
            -- As with every append: it moves unless an open transaction holds it back.
            last_stable_offset = CASE WHEN p.last_stable_offset = p.next_offset THEN p.next_offset + c.records
                                      ELSE p.last_stable_offset END,
            max_timestamp = greatest(p.max_timestamp, appended_at)
        FROM counted c WHERE p.topic_id = c.topic_id AND p.partition = c.partition
        RETURNING p.topic_id, p.partition, p.next_offset - c.records AS base_offset
    ), written AS (
        INSERT INTO kafka.messages ("offset", "timestamp", topic_id, partition, timestamp_type, is_transactional,
                                    key, value, header_names, header_values)
        SELECT m.base_offset + g.number - 1, appended_at, g.topic_id, g.partition,
               g.uses_log_append_time::int, false, g.key, g.value,
               CASE WHEN g.headers > 0 THEN header_names[g.last_header - g.headers + 1 : g.last_header] END,
               CASE WHEN g.headers > 0 THEN header_values[g.last_header - g.headers + 1 : g.last_header] END
        FROM given g JOIN moved m ON m.topic_id = g.topic_id AND m.partition = g.partition
    )
    SELECT g.topic, g.partition, m.base_offset + g.number - 1
    FROM given g LEFT JOIN moved m ON m.topic_id = g.topic_id AND m.partition = g.partition
    ORDER BY g.place;
END
$function$;

CREATE FUNCTION kafka.append_record(
    topic text, partition integer, key bytea, value bytea,
    header_names text[] DEFAULT NULL, header_values bytea[] DEFAULT NULL
) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT a."offset" FROM kafka.append_records(
        ARRAY[topic], ARRAY[partition], ARRAY[key], ARRAY[value],
        ARRAY[coalesce(cardinality(header_names), 0)], header_names, header_values) AS a
$function$;

CREATE FUNCTION kafka.begin_work(
    of_topic text, of_group text, tenants text[], keys text[], lease_ms bigint, owner text
) RETURNS TABLE (place bigint, said text)
-- A key that another worker's open transaction holds is waited for this long; then it is in flight.
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms' AS $function$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', lease_ms::text, true);
    -- In order, so that two workers never wait for each other in a circle.
    RETURN QUERY
    SELECT n.place, kafka.begin_once(n.tenant, of_topic, of_group, n.key, lease_ms * interval '1 millisecond', owner)
    FROM (SELECT k.tenant, k.key, k.place FROM unnest(tenants, keys) WITH ORDINALITY AS k (tenant, key, place)
          ORDER BY k.tenant, k.key) AS n;
END
$function$;

-- Everything that changes rows of kafka.deliveries holds the row of kafka.delivery_partitions above them.

CREATE FUNCTION kafka.require_worker_group(of_group text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    found_state text;
BEGIN
    -- Shared: until the transaction ends nobody can join.
    SELECT g.state INTO found_state FROM kafka.groups g WHERE g.group_id = of_group FOR SHARE;
    IF found_state IS NULL THEN
        RAISE EXCEPTION 'there is no group %', of_group USING ERRCODE = 'TW004';
    END IF;
    IF found_state <> 'Empty' OR EXISTS (SELECT FROM kafka.group_members m WHERE m.group_id = of_group) THEN
        RAISE EXCEPTION 'group % has members: consumers and workers cannot share a group', of_group
            USING ERRCODE = 'TW004', HINT = 'give the workers a group of their own';
    END IF;
END
$function$;

CREATE FUNCTION kafka.join_worker_group(of_group text, of_topic_id integer, from_latest boolean) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    added integer;
BEGIN
    INSERT INTO kafka.groups (group_id) VALUES (of_group) ON CONFLICT (group_id) DO NOTHING;
    PERFORM kafka.require_worker_group(of_group);
    INSERT INTO kafka.delivery_partitions (group_id, topic_id, partition, start_offset, end_offset)
    SELECT of_group, p.topic_id, p.partition, s.first_offset, s.first_offset
    FROM kafka.partitions p
    LEFT JOIN kafka.consumer_offsets o
        ON o.group_id = of_group AND o.topic_id = p.topic_id AND o.partition = p.partition
    CROSS JOIN LATERAL (SELECT coalesce(
        o.committed_offset, CASE WHEN from_latest THEN p.last_stable_offset ELSE p.log_start_offset END)
    ) AS s (first_offset)
    WHERE p.topic_id = of_topic_id
    ORDER BY p.partition
    ON CONFLICT (group_id, topic_id, partition) DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    INSERT INTO kafka.consumer_offsets (group_id, topic_id, partition, committed_offset)
    SELECT d.group_id, d.topic_id, d.partition, d.start_offset
    FROM kafka.delivery_partitions d WHERE d.group_id = of_group AND d.topic_id = of_topic_id
    ORDER BY d.partition
    ON CONFLICT (group_id, topic_id, partition) DO NOTHING;
    RETURN added;
END
$function$;

CREATE FUNCTION kafka.move_worker_group(of_group text, of_topic_id integer, of_partition integer, new_start bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    DELETE FROM kafka.deliveries d
    WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = of_partition AND d."offset" < new_start;
    UPDATE kafka.delivery_partitions d
    SET start_offset = new_start, end_offset = greatest(d.end_offset, new_start)
    WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = of_partition;
    INSERT INTO kafka.consumer_offsets AS o (group_id, topic_id, partition, committed_offset)
    VALUES (of_group, of_topic_id, of_partition, new_start)
    ON CONFLICT (group_id, topic_id, partition) DO UPDATE SET
        committed_offset = excluded.committed_offset, leader_epoch = NULL, committed_at = now(), expires_at = NULL;
END
$function$;

CREATE FUNCTION kafka.take_deliveries(
    taken_by text, of_group text, of_topic_id integer, max_records integer, lease_ms bigint,
    is_in_place boolean, max_unsettled bigint
) RETURNS TABLE (partition integer, "offset" bigint, "timestamp" timestamptz, key bytea, value bytea,
                 header_names text[], header_values bytea[], attempts integer, last_error text,
                 first_delivered_at timestamptz, last_delivered_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    this record;
    held record;
    taken integer := 0;
    step integer;
    room bigint;
    head record;
    next_retried bigint;
    moment timestamptz := clock_timestamp();
    lease_end timestamptz := moment + lease_ms * interval '1 millisecond';
BEGIN
    PERFORM kafka.require_worker_group(of_group);
    <<partitions>>
    FOR this IN
        -- A look without locks; whoever has nothing to give is not touched.
        SELECT d.partition FROM kafka.delivery_partitions d
        JOIN kafka.partitions p ON p.topic_id = d.topic_id AND p.partition = d.partition
        LEFT JOIN kafka.consumer_offsets o
            ON o.group_id = d.group_id AND o.topic_id = d.topic_id AND o.partition = d.partition
        WHERE d.group_id = of_group AND d.topic_id = of_topic_id
          AND (p.last_stable_offset > d.end_offset OR p.log_start_offset > d.start_offset
               OR o.committed_offset <> d.start_offset
               OR EXISTS (SELECT FROM kafka.deliveries x
                          WHERE x.group_id = d.group_id AND x.topic_id = d.topic_id AND x.partition = d.partition
                            AND x.state = 'available' AND x.available_at <= moment))
        ORDER BY random()
    LOOP
        EXIT WHEN taken >= max_records;
        SELECT d.start_offset, d.end_offset INTO held FROM kafka.delivery_partitions d
        WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        SELECT held.start_offset, held.end_offset, p.log_start_offset, p.last_stable_offset, o.committed_offset
        INTO held
        FROM kafka.partitions p LEFT JOIN kafka.consumer_offsets o
            ON o.group_id = of_group AND o.topic_id = p.topic_id AND o.partition = p.partition
        WHERE p.topic_id = of_topic_id AND p.partition = this.partition;
        CONTINUE WHEN NOT FOUND;

        IF held.committed_offset <> held.start_offset THEN
            -- Somebody reset the group's offset: what was delivered before counts no more.
            DELETE FROM kafka.deliveries d
            WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition;
            UPDATE kafka.delivery_partitions d
            SET start_offset = held.committed_offset, end_offset = held.committed_offset
            WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition;
            held.start_offset := held.committed_offset;
            held.end_offset := held.committed_offset;
        END IF;
        IF held.log_start_offset > held.start_offset THEN
            -- Records that were deleted cannot be delivered.
            PERFORM kafka.move_worker_group(of_group, of_topic_id, this.partition, held.log_start_offset);
            held.start_offset := held.log_start_offset;
            held.end_offset := greatest(held.end_offset, held.log_start_offset);
        END IF;

        SELECT d."offset", d.state, d.attempts, d.available_at INTO head FROM kafka.deliveries d
        WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition
          AND d.state IN ('available', 'acquired')
        ORDER BY d."offset" LIMIT 1;
        IF is_in_place AND head."offset" IS NOT NULL THEN
            CONTINUE WHEN head.available_at > moment OR EXISTS (
                SELECT FROM kafka.deliveries d
                WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition
                  AND d.state = 'acquired');
        END IF;

        -- The next one that was delivered before. It is tried alone, so that it harms no other if it ends its worker.
        next_retried := NULL;
        IF head."offset" IS NOT NULL THEN
            SELECT min(d."offset") INTO next_retried FROM kafka.deliveries d
            WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition
              AND d.state = 'available' AND d.attempts > 0 AND (is_in_place OR d.available_at <= moment);
        END IF;
        IF next_retried IS NOT NULL AND (NOT is_in_place OR next_retried = head."offset") THEN
            CONTINUE WHEN taken > 0;
            RETURN QUERY
            WITH chosen AS (
                UPDATE kafka.deliveries d
                SET state = 'acquired', attempts = d.attempts + 1, worker = taken_by, leased_until = lease_end,
                    last_delivered_at = moment
                WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition
                  AND d."offset" = next_retried AND d.state = 'available'
                RETURNING d.*)
            SELECT c.partition, c."offset", m."timestamp", m.key, m.value, m.header_names, m.header_values,
                   c.attempts, c.last_error, c.first_delivered_at, c.last_delivered_at
            FROM chosen c JOIN kafka.messages m
                ON m.topic_id = of_topic_id AND m.partition = c.partition AND m."offset" = c."offset";
            RETURN;
        END IF;

        -- Those that were given back undelivered.
        IF head."offset" IS NOT NULL THEN
            RETURN QUERY
            WITH chosen AS (
                UPDATE kafka.deliveries d
                SET state = 'acquired', attempts = 1, worker = taken_by, leased_until = lease_end,
                    first_delivered_at = moment, last_delivered_at = moment
                WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition
                  AND d.state = 'available'
                  AND d."offset" IN (
                    SELECT x."offset" FROM kafka.deliveries x
                    WHERE x.group_id = of_group AND x.topic_id = of_topic_id AND x.partition = this.partition
                      AND x.state = 'available' AND x.attempts = 0 AND x.available_at <= moment
                      AND (NOT is_in_place OR next_retried IS NULL OR x."offset" < next_retried)
                    ORDER BY x."offset" LIMIT max_records - taken)
                RETURNING d.*)
            SELECT c.partition, c."offset", m."timestamp", m.key, m.value, m.header_names, m.header_values,
                   c.attempts, c.last_error, c.first_delivered_at, c.last_delivered_at
            FROM chosen c JOIN kafka.messages m
                ON m.topic_id = of_topic_id AND m.partition = c.partition AND m."offset" = c."offset"
            ORDER BY c."offset";
            GET DIAGNOSTICS step = ROW_COUNT;
            taken := taken + step;
            -- In place, new ones come after all others.
            CONTINUE WHEN is_in_place AND EXISTS (
                SELECT FROM kafka.deliveries d
                WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition
                  AND d.state = 'available');
        END IF;

        room := least(max_records - taken, held.start_offset + max_unsettled - held.end_offset);
        CONTINUE WHEN room <= 0 OR held.end_offset >= held.last_stable_offset;
        RETURN QUERY
        WITH fresh AS MATERIALIZED (
            SELECT m.* FROM kafka.messages m
            WHERE m.topic_id = of_topic_id AND m.partition = this.partition
              AND m."offset" >= held.end_offset AND m."offset" < held.last_stable_offset AND m.control_type IS NULL
              -- As in kafka.committed_messages.
              AND (NOT m.is_transactional OR coalesce((
                  SELECT a.last_offset FROM kafka.aborted_transactions a
                  WHERE a.topic_id = m.topic_id AND a.partition = m.partition AND a.producer_id = m.producer_id
                    AND a.first_offset <= m."offset"
                  ORDER BY a.first_offset DESC LIMIT 1) < m."offset", true))
            ORDER BY m."offset" LIMIT room
        ), added AS (
            INSERT INTO kafka.deliveries (group_id, topic_id, partition, "offset", state, attempts, worker,
                                          leased_until, first_delivered_at, last_delivered_at)
            SELECT of_group, of_topic_id, this.partition, f."offset", 'acquired', 1, taken_by, lease_end, moment, moment
            FROM fresh f
        )
        SELECT f.partition, f."offset", f."timestamp", f.key, f.value, f.header_names, f.header_values,
               1, NULL::text, moment, moment
        FROM fresh f ORDER BY f."offset";
        GET DIAGNOSTICS step = ROW_COUNT;
        taken := taken + step;
        UPDATE kafka.delivery_partitions d
        SET end_offset = CASE WHEN step < room THEN held.last_stable_offset
                              ELSE (SELECT max(x."offset") + 1 FROM kafka.deliveries x
                                    WHERE x.group_id = of_group AND x.topic_id = of_topic_id
                                      AND x.partition = this.partition) END
        WHERE d.group_id = of_group AND d.topic_id = of_topic_id AND d.partition = this.partition;
        IF step = 0 AND head."offset" IS NULL THEN
            -- Nothing but markers and aborted records up to the end: they are settled.
            PERFORM kafka.move_worker_group(of_group, of_topic_id, this.partition, held.last_stable_offset);
        END IF;
    END LOOP;
END
$function$;

CREATE FUNCTION kafka.settle_deliveries(
    of_group text, topic_ids integer[], partitions integer[], offsets bigint[], attempts integer[], workers text[],
    states text[], delays_ms bigint[], errors text[], are_uncounted boolean[], must_be_expired boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    this record;
    held record;
    matching integer;
    first_unsettled bigint;
    moment timestamptz := clock_timestamp();
BEGIN
    PERFORM kafka.require_worker_group(of_group);
    FOR this IN
        SELECT n.topic_id, n.partition, count(*) AS records,
               array_agg(n.settled) FILTER (WHERE n.state IN ('acknowledged', 'archived')) AS settled
        FROM unnest(topic_ids, partitions, offsets, states) AS n (topic_id, partition, settled, state)
        GROUP BY n.topic_id, n.partition ORDER BY n.topic_id, n.partition
    LOOP
        -- Lock order: after the logs' partitions; the group's in order.
        SELECT d.start_offset, d.end_offset INTO held FROM kafka.delivery_partitions d
        WHERE d.group_id = of_group AND d.topic_id = this.topic_id AND d.partition = this.partition
        FOR UPDATE;
        IF NOT FOUND OR EXISTS (
            SELECT FROM kafka.consumer_offsets o
            WHERE o.group_id = of_group AND o.topic_id = this.topic_id AND o.partition = this.partition
              AND o.committed_offset <> held.start_offset) THEN
            RAISE EXCEPTION 'the offsets of group % were reset', of_group USING ERRCODE = 'TW005';
        END IF;
        SELECT count(*) INTO matching
        FROM unnest(topic_ids, partitions, offsets, attempts, workers)
             AS n (topic_id, partition, "offset", attempts, worker)
        JOIN kafka.deliveries d
            ON d.group_id = of_group AND d.topic_id = n.topic_id AND d.partition = n.partition
           AND d."offset" = n."offset" AND d.attempts = n.attempts AND d.worker = n.worker AND d.state = 'acquired'
           AND (NOT must_be_expired OR d.leased_until < moment)
        WHERE n.topic_id = this.topic_id AND n.partition = this.partition;
        IF matching <> this.records THEN
            RAISE EXCEPTION 'the delivery is not ours any more: it was not answered in time'
                USING ERRCODE = 'TW005';
        END IF;

        UPDATE kafka.deliveries d
        SET state = 'available', worker = NULL, leased_until = NULL,
            available_at = moment + n.delay_ms * interval '1 millisecond',
            attempts = d.attempts - n.is_uncounted::int,
            first_delivered_at = CASE WHEN d.attempts = n.is_uncounted::int THEN NULL ELSE d.first_delivered_at END,
            last_error = coalesce(n.error, d.last_error)
        FROM unnest(topic_ids, partitions, offsets, states, delays_ms, errors, are_uncounted)
             AS n (topic_id, partition, "offset", state, delay_ms, error, is_uncounted)
        WHERE n.topic_id = this.topic_id AND n.partition = this.partition AND n.state = 'available'
          AND d.group_id = of_group AND d.topic_id = n.topic_id AND d.partition = n.partition
          AND d."offset" = n."offset";
        CONTINUE WHEN this.settled IS NULL;

        SELECT d."offset" INTO first_unsettled FROM kafka.deliveries d
        WHERE d.group_id = of_group AND d.topic_id = this.topic_id AND d.partition = this.partition
          AND d.state IN ('available', 'acquired') AND d."offset" <> ALL (this.settled)
        ORDER BY d."offset" LIMIT 1;
        first_unsettled := coalesce(first_unsettled, held.end_offset);
        UPDATE kafka.deliveries d
        SET state = n.state, worker = NULL, leased_until = NULL, last_error = coalesce(n.error, d.last_error)
        FROM unnest(topic_ids, partitions, offsets, states, errors)
             AS n (topic_id, partition, "offset", state, error)
        WHERE n.topic_id = this.topic_id AND n.partition = this.partition AND n.state <> 'available'
          AND n."offset" > first_unsettled
          AND d.group_id = of_group AND d.topic_id = n.topic_id AND d.partition = n.partition
          AND d."offset" = n."offset";
        IF first_unsettled > held.start_offset THEN
            PERFORM kafka.move_worker_group(of_group, this.topic_id, this.partition, first_unsettled);
        END IF;
    END LOOP;
END
$function$;
"""

VIEWS = """
CREATE VIEW kafka.deliveries_by_age AS
SELECT d.group_id, t.name AS topic, d.partition, d."offset", d.state, d.attempts, d.last_error, d.worker,
       d.leased_until, CASE WHEN d.state = 'available' THEN d.available_at END AS next_attempt_at,
       d.first_delivered_at, d.last_delivered_at, now() - d.first_delivered_at AS age
FROM kafka.deliveries d JOIN kafka.topics t USING (topic_id)
WHERE d.state IN ('available', 'acquired')
ORDER BY d.first_delivered_at;

CREATE VIEW kafka.delivery_stats AS
SELECT p.group_id, t.name AS topic, sum(p.end_offset - p.start_offset)::bigint AS offsets_open,
       (SELECT count(*) FROM kafka.deliveries d WHERE d.group_id = p.group_id AND d.topic_id = p.topic_id
           AND d.state = 'acquired') AS in_flight,
       (SELECT count(*) FROM kafka.deliveries d WHERE d.group_id = p.group_id AND d.topic_id = p.topic_id
           AND d.state = 'available') AS waiting,
       (SELECT now() - min(d.first_delivered_at) FROM kafka.deliveries d
         WHERE d.group_id = p.group_id AND d.topic_id = p.topic_id
           AND d.state IN ('available', 'acquired')) AS oldest_age,
       (SELECT count(*) FROM kafka.dead_letters l
         WHERE l.group_id = p.group_id AND l.source_topic = t.name AND l.state = 'dead') AS dead_letters
FROM kafka.delivery_partitions p JOIN kafka.topics t USING (topic_id)
GROUP BY p.group_id, p.topic_id, t.name;

CREATE VIEW kafka.delivery_totals AS
SELECT sum(c.retried)::bigint AS retried, sum(c.timed_out)::bigint AS timed_out,
       sum(c.dead_lettered)::bigint AS dead_lettered, sum(c.redriven)::bigint AS redriven
FROM kafka.delivery_counters c;
"""

COMMENTS = {
    "TABLE kafka.delivery_partitions": "How far the workers of a group are in a partition. Held by whoever takes or "
    "settles deliveries there.",
    "COLUMN kafka.delivery_partitions.start_offset": "The first unsettled offset: the group's committed offset.",
    "COLUMN kafka.delivery_partitions.end_offset": "The first offset that was never delivered.",
    "COLUMN kafka.delivery_partitions.topic_id": "The topic.",
    "COLUMN kafka.delivery_partitions.partition": "Partition number.",
    "COLUMN kafka.delivery_partitions.group_id": "The workers' group.",
    "TABLE kafka.deliveries": "Records on their way to the workers of a group: those delivered and not settled, and "
    "those settled behind one that is not. See kafka.deliveries_by_age.",
    'COLUMN kafka.deliveries."offset"': "The record's offset.",
    "COLUMN kafka.deliveries.available_at": "When it may be delivered (again).",
    "COLUMN kafka.deliveries.leased_until": "Until when its worker may answer; null unless acquired.",
    "COLUMN kafka.deliveries.first_delivered_at": "When it was first delivered; null if it was given back.",
    "COLUMN kafka.deliveries.last_delivered_at": "When it was last delivered.",
    "COLUMN kafka.deliveries.topic_id": "The topic.",
    "COLUMN kafka.deliveries.partition": "Partition number.",
    "COLUMN kafka.deliveries.attempts": "How often it was delivered. Whoever answers must name it: an older delivery "
    "is answered in vain.",
    "COLUMN kafka.deliveries.group_id": "The workers' group.",
    "COLUMN kafka.deliveries.state": "As in KIP-932: available, acquired, acknowledged or archived (given up).",
    "COLUMN kafka.deliveries.worker": "Who has it; null unless acquired.",
    "COLUMN kafka.deliveries.last_error": "Why the delivery before failed; ack_timeout if nobody answered.",
    "TABLE kafka.dead_letters": "What was given up, each a record of a topic dlq.<topic>. See `tablewire dlq`.",
    "COLUMN kafka.dead_letters.dead_letter_id": "Its number.",
    "COLUMN kafka.dead_letters.source_offset": "Offset of the record that was given up.",
    "COLUMN kafka.dead_letters.dlq_offset": "Its offset in the dead-letter topic.",
    "COLUMN kafka.dead_letters.redriven_offset": "Offset under which it went back to its topic.",
    "COLUMN kafka.dead_letters.first_delivered_at": "When it was first delivered.",
    "COLUMN kafka.dead_letters.last_delivered_at": "When it was last delivered.",
    "COLUMN kafka.dead_letters.died_at": "When it was given up.",
    "COLUMN kafka.dead_letters.redriven_at": "When it went back.",
    "COLUMN kafka.dead_letters.source_partition": "Partition of the record that was given up.",
    "COLUMN kafka.dead_letters.dlq_topic_id": "The dead-letter topic.",
    "COLUMN kafka.dead_letters.dlq_partition": "Its partition there.",
    "COLUMN kafka.dead_letters.attempts": "How often it was delivered.",
    "COLUMN kafka.dead_letters.copies": "How many records with this idempotency key were given up; one of them is a "
    "dead letter.",
    "COLUMN kafka.dead_letters.group_id": "The workers that gave it up.",
    "COLUMN kafka.dead_letters.source_topic": "Name of the topic it came from.",
    "COLUMN kafka.dead_letters.tenant": "The record's tenant; empty if it has none.",
    "COLUMN kafka.dead_letters.idempotency_key": "The record's idempotency key; null if it has none.",
    "COLUMN kafka.dead_letters.state": "dead, or redriven: written to its topic again.",
    "COLUMN kafka.dead_letters.last_error": "Why the last delivery failed.",
    "TABLE kafka.delivery_counters": "Counts behind kafka.delivery_totals, in slots that do not wait for each other.",
    "COLUMN kafka.delivery_counters.slot": "0 to 15, by database session.",
    "COLUMN kafka.delivery_counters.retried": "Deliveries that failed and are to be repeated, those below included.",
    "COLUMN kafka.delivery_counters.timed_out": "Deliveries that nobody answered in time.",
    "COLUMN kafka.delivery_counters.dead_lettered": "Records given up.",
    "COLUMN kafka.delivery_counters.redriven": "Dead letters written back to their topic.",
    "FUNCTION kafka.append_records(text[], integer[], bytea[], bytea[], integer[], text[], bytea[])": "Appends records "
    "to topics as part of the caller's transaction; returns where they are, in the order given. header_counts says how "
    "many of the header names and values belong to each record. Holds the partitions until the transaction ends: call "
    "it late, once, for all records.",
    "FUNCTION kafka.append_record(text, integer, bytea, bytea, text[], bytea[])": "Appends one record as part of the "
    "caller's transaction; returns its offset. Holds the partition until the transaction ends: call it late.",
    "FUNCTION kafka.begin_work(text, text, text[], text[], bigint, text)": "Begins the keys of several records for a "
    "worker, see kafka.begin_once. From then on the server ends the transaction should its worker hang for longer than "
    "the lease.",
    "FUNCTION kafka.require_worker_group(text)": "Raises TW004 unless the group exists and no consumer is in it; keeps "
    "it so until the transaction ends.",
    "FUNCTION kafka.join_worker_group(text, integer, boolean)": "Lets workers of a group read a topic: from the "
    "group's committed offsets, else from the start or the end. Returns how many partitions are new to it.",
    "FUNCTION kafka.move_worker_group(text, integer, integer, bigint)": "Settles everything below an offset. For the "
    "functions beside it.",
    "FUNCTION kafka.take_deliveries(text, text, integer, integer, bigint, boolean, bigint)": "Delivers records to a "
    "worker, counting the attempt and leasing them to it: either some that were never tried, or one that was.",
    "FUNCTION kafka.settle_deliveries(text, integer[], integer[], bigint[], integer[], text[], text[], bigint[], "
    "text[], boolean[], boolean)": "Answers deliveries: acknowledged, archived, or available again after a delay; "
    "moves the group's committed offset to the first unsettled one. Raises TW005 when one of them is not the worker's "
    "any more.",
    "VIEW kafka.deliveries_by_age": "Unsettled deliveries, the oldest first: attempts, last error, who has it until "
    "when, or when it is tried again.",
    "COLUMN kafka.deliveries_by_age.group_id": "The workers' group.",
    "COLUMN kafka.deliveries_by_age.topic": "The topic's name.",
    "COLUMN kafka.deliveries_by_age.partition": "Partition number.",
    'COLUMN kafka.deliveries_by_age."offset"': "The record's offset.",
    "COLUMN kafka.deliveries_by_age.state": "available or acquired.",
    "COLUMN kafka.deliveries_by_age.attempts": "How often it was delivered.",
    "COLUMN kafka.deliveries_by_age.last_error": "Why the delivery before failed.",
    "COLUMN kafka.deliveries_by_age.worker": "Who has it.",
    "COLUMN kafka.deliveries_by_age.leased_until": "Until when its worker may answer.",
    "COLUMN kafka.deliveries_by_age.next_attempt_at": "When it may be delivered again.",
    "COLUMN kafka.deliveries_by_age.first_delivered_at": "When it was first delivered.",
    "COLUMN kafka.deliveries_by_age.last_delivered_at": "When it was last delivered.",
    "COLUMN kafka.deliveries_by_age.age": "How long ago it was first delivered.",
    "VIEW kafka.delivery_stats": "Workers' groups by topic: what they have in hand, what waits for another attempt, "
    "what was given up.",
    "COLUMN kafka.delivery_stats.group_id": "The workers' group.",
    "COLUMN kafka.delivery_stats.topic": "The topic's name.",
    "COLUMN kafka.delivery_stats.offsets_open": "Offsets between the first unsettled and the first undelivered one.",
    "COLUMN kafka.delivery_stats.in_flight": "Records that workers have now.",
    "COLUMN kafka.delivery_stats.waiting": "Records that wait for a delivery.",
    "COLUMN kafka.delivery_stats.oldest_age": "Age of the oldest unsettled delivery.",
    "COLUMN kafka.delivery_stats.dead_letters": "Dead letters that were not redriven.",
    "VIEW kafka.delivery_totals": "How many deliveries were repeated, timed out, given up or redriven.",
    "COLUMN kafka.delivery_totals.retried": "Deliveries that failed and are to be repeated, since the schema was made.",
    "COLUMN kafka.delivery_totals.timed_out": "Deliveries that nobody answered in time.",
    "COLUMN kafka.delivery_totals.dead_lettered": "Records given up.",
    "COLUMN kafka.delivery_totals.redriven": "Dead letters written back to their topic.",
}

GRANTS = """
DO $grants$
BEGIN
    REVOKE ALL ON FUNCTION
        kafka.append_records(text[], integer[], bytea[], bytea[], integer[], text[], bytea[]),
        kafka.append_record(text, integer, bytea, bytea, text[], bytea[]),
        kafka.begin_work(text, text, text[], text[], bigint, text),
        kafka.require_worker_group(text), kafka.join_worker_group(text, integer, boolean),
        kafka.move_worker_group(text, integer, integer, bigint),
        kafka.take_deliveries(text, text, integer, integer, bigint, boolean, bigint),
        kafka.settle_deliveries(text, integer[], integer[], bigint[], integer[], text[], text[], bigint[], text[],
                                boolean[], boolean)
        FROM PUBLIC;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_gateway') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON kafka.delivery_partitions, kafka.deliveries, kafka.dead_letters,
            kafka.delivery_counters TO tablewire_gateway;
        GRANT SELECT ON kafka.deliveries_by_age, kafka.delivery_stats, kafka.delivery_totals TO tablewire_gateway;
        GRANT EXECUTE ON FUNCTION
            kafka.append_records(text[], integer[], bytea[], bytea[], integer[], text[], bytea[]),
            kafka.append_record(text, integer, bytea, bytea, text[], bytea[]),
            kafka.begin_work(text, text, text[], text[], bigint, text),
            kafka.require_worker_group(text), kafka.join_worker_group(text, integer, boolean),
            kafka.move_worker_group(text, integer, integer, bigint),
            kafka.take_deliveries(text, text, integer, integer, bigint, boolean, bigint),
            kafka.settle_deliveries(text, integer[], integer[], bigint[], integer[], text[], text[], bigint[], text[],
                                    boolean[], boolean)
            TO tablewire_gateway;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_reader') THEN
        GRANT SELECT ON kafka.delivery_partitions, kafka.deliveries, kafka.dead_letters, kafka.deliveries_by_age,
            kafka.delivery_stats, kafka.delivery_totals TO tablewire_reader;
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
    op.execute("DROP VIEW kafka.deliveries_by_age, kafka.delivery_stats, kafka.delivery_totals")
    op.execute(
        "DROP FUNCTION kafka.append_record, kafka.append_records, kafka.begin_work, kafka.take_deliveries,"
        " kafka.settle_deliveries, kafka.move_worker_group, kafka.join_worker_group, kafka.require_worker_group"
    )
    op.execute("DROP TABLE kafka.deliveries, kafka.delivery_partitions, kafka.dead_letters, kafka.delivery_counters")
