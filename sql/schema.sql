-- The schema as the migrations leave it, for reading: pg_dump of a migrated database, without owners and grants.
-- Written by `make schema`; a test keeps it true.

CREATE SCHEMA kafka;

COMMENT ON SCHEMA kafka IS 'Tablewire: Kafka topics, records, producers and groups as rows. Start with kafka.committed_messages.';

CREATE TYPE kafka.remembered_producer AS (
	producer_id bigint,
	topic_id integer,
	partition_id integer,
	producer_epoch smallint,
	last_sequence integer,
	run_length bigint,
	batches text
);

COMMENT ON TYPE kafka.remembered_producer IS 'A row of kafka.producer_sequences as gateways give it to kafka.advance_partitions.';

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

CREATE PROCEDURE kafka.advance_partitions(IN follows bigint, IN number bigint, IN transactions bigint[], IN locks bigint[], IN advances bigint[], IN advances_at integer[], IN extents bigint[], IN producers kafka.remembered_producer[])
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
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
$$;

COMMENT ON PROCEDURE kafka.advance_partitions(IN follows bigint, IN number bigint, IN transactions bigint[], IN locks bigint[], IN advances bigint[], IN advances_at integer[], IN extents bigint[], IN producers kafka.remembered_producer[]) IS 'The first half of a commit of records: see that the commit which it follows is in force (else SQLSTATE TW008; 0: it follows none), share open transactions (else TW007), lock partitions, move their ends if nobody else has, and remember the newest five batches of each producer if none has a newer epoch (else TW006). For gateways.';

CREATE PROCEDURE kafka.advance_topic(IN follows bigint, IN number bigint, IN in_topic integer, IN in_partitions integer[], IN begins bigint[], IN ends bigint[], IN newest timestamp with time zone[], IN by_producer bigint, IN by_epoch smallint, IN last_sequences integer[], IN run_lengths bigint[], IN windows text[])
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
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
$$;

COMMENT ON PROCEDURE kafka.advance_topic(IN follows bigint, IN number bigint, IN in_topic integer, IN in_partitions integer[], IN begins bigint[], IN ends bigint[], IN newest timestamp with time zone[], IN by_producer bigint, IN by_epoch smallint, IN last_sequences integer[], IN run_lengths bigint[], IN windows text[]) IS 'As kafka.advance_partitions, for batches of one topic that are in no transaction and have the same producer, null for none: the arrays behind in_partitions hold what is said of a partition where its number is. For gateways.';

CREATE FUNCTION kafka.append_record(topic text, partition integer, key bytea, value bytea, header_names text[] DEFAULT NULL::text[], header_values bytea[] DEFAULT NULL::bytea[]) RETURNS bigint
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT a."offset" FROM kafka.append_records(
        ARRAY[topic], ARRAY[partition], ARRAY[key], ARRAY[value],
        ARRAY[coalesce(cardinality(header_names), 0)], header_names, header_values) AS a
$$;

COMMENT ON FUNCTION kafka.append_record(topic text, partition integer, key bytea, value bytea, header_names text[], header_values bytea[]) IS 'Appends one record as part of the caller''s transaction; returns its offset. Holds the partition until the transaction ends: call it late.';

CREATE FUNCTION kafka.append_records(topics text[], partitions integer[], keys bytea[], "values" bytea[], header_counts integer[] DEFAULT NULL::integer[], header_names text[] DEFAULT NULL::text[], header_values bytea[] DEFAULT NULL::bytea[]) RETURNS TABLE(topic text, partition integer, "offset" bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;

COMMENT ON FUNCTION kafka.append_records(topics text[], partitions integer[], keys bytea[], "values" bytea[], header_counts integer[], header_names text[], header_values bytea[]) IS 'Appends records to topics as part of the caller''s transaction; returns where they are, in the order given. header_counts says how many of the header names and values belong to each record. Holds the partitions until the transaction ends: call it late, once, for all records.';

CREATE FUNCTION kafka.begin_new_keys(separator integer, tenants bytea, keys bytea, batches integer[], offsets bigint[], topic_ids integer[], partitions integer[], producer_ids bigint[], retentions_ms bigint[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    until timestamptz[] := ARRAY(
        SELECT CASE WHEN r.ms < 0 THEN 'infinity' ELSE now() + r.ms * interval '1 millisecond' END
        FROM unnest(retentions_ms) WITH ORDINALITY AS r (ms, place) ORDER BY r.place);
BEGIN
    -- In the order given (callers sort): who begins one of them at the same time is waited for, and never in a circle.
    -- No ON CONFLICT: that looks each key up before it is written, and most are new.
    INSERT INTO kafka.idempotency_keys
        (topic_id, group_id, tenant, key, status, producer_id, first_partition, first_offset, expires_at)
    SELECT topic_ids[sent.batch], '', coalesce(sent.tenant, ''), sent.key,
           CASE WHEN producer_ids[sent.batch] < 0 THEN 'COMMITTED' ELSE 'PENDING' END,
           nullif(producer_ids[sent.batch], -1), partitions[sent.batch], sent."offset", until[sent.batch]
    FROM unnest(string_to_array(convert_from(tenants, 'UTF8'), chr(separator)),
                string_to_array(convert_from(keys, 'UTF8'), chr(separator)), batches, offsets)
         AS sent (tenant, key, batch, "offset");
END
$$;

COMMENT ON FUNCTION kafka.begin_new_keys(separator integer, tenants bytea, keys bytea, batches integer[], offsets bigint[], topic_ids integer[], partitions integer[], producer_ids bigint[], retentions_ms bigint[]) IS 'Begin the business keys of the records that a commit appends, none of which is known; else a unique violation. For gateways.';

CREATE FUNCTION kafka.begin_once(tenant text, topic text, group_id text, key text, lease interval DEFAULT '00:01:00'::interval, owner text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    topic_id CONSTANT integer := kafka.require_topic(topic);
    claimant CONSTANT text := coalesce(nullif(owner, ''), kafka.session_owner());
BEGIN
    IF coalesce(key, '') = '' THEN
        RETURN 'started';  -- no key, no identity: nothing to remember
    END IF;
    IF lease IS NULL OR lease <= interval '0' THEN
        RAISE EXCEPTION 'a lease must be longer than nothing, not %', coalesce(lease::text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF current_setting('lock_timeout') = '0' THEN
        RETURN kafka.claim_key(topic_id, coalesce(group_id, ''), coalesce(tenant, ''), key, lease, claimant);
    END IF;
    BEGIN
        RETURN kafka.claim_key(topic_id, coalesce(group_id, ''), coalesce(tenant, ''), key, lease, claimant);
    EXCEPTION WHEN lock_not_available THEN
        RETURN 'in_flight';  -- a transaction that is still open began it, and the caller does not want to wait longer
    END;
END
$$;

COMMENT ON FUNCTION kafka.begin_once(tenant text, topic text, group_id text, key text, lease interval, owner text) IS 'Before the work for (tenant, topic, group, key): started (do it, then mark it), already_done, or in_flight (somebody else is at it). Arguments lease and owner are optional.';

CREATE FUNCTION kafka.begin_work(of_topic text, of_group text, tenants text[], keys text[], lease_ms bigint, owner text) RETURNS TABLE(place bigint, said text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '250ms'
    AS $$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', lease_ms::text, true);
    -- In order, so that two workers never wait for each other in a circle.
    RETURN QUERY
    SELECT n.place, kafka.begin_once(n.tenant, of_topic, of_group, n.key, lease_ms * interval '1 millisecond', owner)
    FROM (SELECT k.tenant, k.key, k.place FROM unnest(tenants, keys) WITH ORDINALITY AS k (tenant, key, place)
          ORDER BY k.tenant, k.key) AS n;
END
$$;

COMMENT ON FUNCTION kafka.begin_work(of_topic text, of_group text, tenants text[], keys text[], lease_ms bigint, owner text) IS 'Begins the keys of several records for a worker, see kafka.begin_once. From then on the server ends the transaction should its worker hang for longer than the lease.';

CREATE FUNCTION kafka.claim_key(claimed_topic_id integer, claimed_group_id text, claimed_tenant text, claimed_key text, lease interval, owner text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    retention_ms bigint := coalesce(
        (SELECT c.value::bigint FROM kafka.topic_configs c
         WHERE c.topic_id = claimed_topic_id AND c.name = 'idempotency.keys.retention.ms'), 604800000);
    found_status text;
BEGIN
    LOOP
        INSERT INTO kafka.idempotency_keys AS k
            (topic_id, group_id, tenant, key, status, owner, lease_until, expires_at)
        VALUES (claimed_topic_id, claimed_group_id, claimed_tenant, claimed_key, 'PENDING', claim_key.owner,
                clock_timestamp() + claim_key.lease,
                CASE WHEN retention_ms < 0 THEN 'infinity' ELSE now() + retention_ms * interval '1 millisecond' END)
        ON CONFLICT (topic_id, group_id, tenant, key) DO UPDATE SET
            status = 'PENDING', owner = excluded.owner, lease_until = clock_timestamp() + claim_key.lease,
            attempts = k.attempts + 1, updated_at = clock_timestamp(), expires_at = excluded.expires_at,
            last_error = CASE WHEN k.status = 'PENDING' THEN format('the lease of %s ran out', k.owner)
                              ELSE k.last_error END
        WHERE k.status = 'FAILED' OR k.lease_until <= clock_timestamp();
        IF FOUND THEN
            RETURN 'started';
        END IF;
        SELECT k.status INTO found_status FROM kafka.idempotency_keys k
        WHERE k.topic_id = claimed_topic_id AND k.group_id = claimed_group_id AND k.tenant = claimed_tenant
          AND k.key = claimed_key;
        -- Not found: it expired at this very moment. Failed: only just. Both are begun now.
        IF found_status IN ('COMMITTED', 'PENDING') THEN
            RETURN CASE found_status WHEN 'COMMITTED' THEN 'already_done' ELSE 'in_flight' END;
        END IF;
    END LOOP;
END
$$;

COMMENT ON FUNCTION kafka.claim_key(claimed_topic_id integer, claimed_group_id text, claimed_tenant text, claimed_key text, lease interval, owner text) IS 'What kafka.begin_once does to the registry.';

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

CREATE FUNCTION kafka.extend_lease(tenant text, topic text, group_id text, key text, lease interval DEFAULT '00:01:00'::interval, owner text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
BEGIN
    UPDATE kafka.idempotency_keys k
    SET lease_until = clock_timestamp() + extend_lease.lease, updated_at = clock_timestamp()
    WHERE k.topic_id = kafka.require_topic(extend_lease.topic) AND k.group_id = coalesce(extend_lease.group_id, '')
      AND k.tenant = coalesce(extend_lease.tenant, '') AND k.key = extend_lease.key
      AND k.status = 'PENDING' AND k.producer_id IS NULL
      AND k.owner = coalesce(nullif(extend_lease.owner, ''), kafka.session_owner());
    RETURN FOUND;
END
$$;

COMMENT ON FUNCTION kafka.extend_lease(tenant text, topic text, group_id text, key text, lease interval, owner text) IS 'More time for a key that the caller began; false if it is no longer the caller''s.';

CREATE FUNCTION kafka.find_torn(topic_ids integer[], partitions integer[], starts bigint[], ends bigint[]) RETURNS TABLE(topic_id integer, partition integer, first_offset bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
    -- The topics are written into the query, so that only their own tables are planned for.
    RETURN QUERY EXECUTE format($query$
WITH logged AS NOT MATERIALIZED (
    SELECT * FROM kafka.messages WHERE topic_id = ANY (%1$L::int[])
), wanted AS MATERIALIZED (
    SELECT w.* FROM unnest($1, $2, $3, $4) AS w (topic_id, partition, low, high)
), beyond AS MATERIALIZED (
    -- What was committed after the range of some partition. All markers of a transaction carry its time.
    SELECT w.topic_id, w.partition, w.low, w.high, m.producer_id, m.producer_epoch, m."timestamp"
    FROM wanted w
    JOIN logged m ON m.topic_id = w.topic_id AND m.partition = w.partition AND m."offset" >= w.high
    WHERE m.control_type = 1
), ended AS MATERIALIZED (
    -- The last marker of each of those producers within the range of the same partition.
    SELECT b.topic_id, b.partition, b.high, b.producer_id, coalesce(
               (SELECT max(m."offset") FROM logged m
                WHERE m.topic_id = b.topic_id AND m.partition = b.partition AND m.producer_id = b.producer_id
                  AND m.control_type IS NOT NULL AND m."offset" >= b.low AND m."offset" < b.high), b.low - 1) AS marker
    FROM (SELECT DISTINCT topic_id, partition, low, high, producer_id FROM beyond) AS b
    WHERE b.low < b.high
), torn AS (
    -- Its records follow that marker within the range, and its own marker follows the range.
    SELECT e.topic_id, e.partition, e.producer_id, min(m."offset") AS first_offset
    FROM (SELECT topic_id, partition, high, min(marker) AS marker FROM ended GROUP BY topic_id, partition, high) AS tail
    JOIN logged m ON m.topic_id = tail.topic_id AND m.partition = tail.partition
         AND m."offset" > tail.marker AND m."offset" < tail.high AND m.is_transactional
    JOIN ended e ON e.topic_id = m.topic_id AND e.partition = m.partition AND e.producer_id = m.producer_id
         AND m."offset" > e.marker
    GROUP BY e.topic_id, e.partition, e.producer_id
    UNION ALL
    -- It ended within the range of this partition and beyond that of another.
    SELECT i.topic_id, i.partition, i.producer_id, begun."offset"
    FROM (
        SELECT w.topic_id, w.partition, w.low, m.producer_id, m."offset" AS marker
        FROM wanted w
        JOIN logged m ON m.topic_id = w.topic_id AND m.partition = w.partition
             AND m."offset" >= w.low AND m."offset" < w.high
        WHERE m.control_type = 1 AND (m.producer_id, m.producer_epoch, m."timestamp") IN (
            SELECT b.producer_id, b.producer_epoch, b."timestamp" FROM beyond b)
    ) AS i
    CROSS JOIN LATERAL (
        SELECT m."offset" FROM logged m
        WHERE m.topic_id = i.topic_id AND m.partition = i.partition AND m.producer_id = i.producer_id
          AND m.is_transactional AND m."offset" < i.marker AND m."offset" > coalesce(
              (SELECT max(earlier."offset") FROM logged earlier
               WHERE earlier.topic_id = i.topic_id AND earlier.partition = i.partition
                 AND earlier.producer_id = i.producer_id AND earlier.control_type IS NOT NULL
                 AND earlier."offset" >= i.low AND earlier."offset" < i.marker), i.low - 1)
        ORDER BY m."offset" LIMIT 1
    ) AS begun
)
SELECT torn.topic_id, torn.partition, min(torn.first_offset)
FROM torn
-- What was aborted is seen by nobody, whole or in part.
WHERE NOT EXISTS (
    SELECT FROM kafka.aborted_transactions a
    WHERE a.topic_id = torn.topic_id AND a.partition = torn.partition AND a.producer_id = torn.producer_id
      AND a.first_offset <= torn.first_offset AND a.last_offset >= torn.first_offset)
GROUP BY torn.topic_id, torn.partition
    $query$, topic_ids) USING topic_ids, partitions, starts, ends;
END
$_$;

COMMENT ON FUNCTION kafka.find_torn(topic_ids integer[], partitions integer[], starts bigint[], ends bigint[]) IS 'For ranges [start, end) of partitions: where, per partition, the first committed transaction begins of which the ranges hold a part only. Once the ranges end there at the latest, and none is found any more, they hold each transaction whole or not at all.';

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

CREATE FUNCTION kafka.join_worker_group(of_group text, of_topic_id integer, from_latest boolean) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;

COMMENT ON FUNCTION kafka.join_worker_group(of_group text, of_topic_id integer, from_latest boolean) IS 'Lets workers of a group read a topic: from the group''s committed offsets, else from the start or the end. Returns how many partitions are new to it.';

CREATE FUNCTION kafka.mark_failure(tenant text, topic text, group_id text, key text, reason text, owner text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF coalesce(key, '') <> '' THEN
        PERFORM kafka.mark_key(
            kafka.require_topic(topic), coalesce(group_id, ''), coalesce(tenant, ''), key,
            coalesce(nullif(owner, ''), kafka.session_owner()), 'FAILED', coalesce(reason, 'no reason given'), NULL);
    END IF;
END
$$;

COMMENT ON FUNCTION kafka.mark_failure(tenant text, topic text, group_id text, key text, reason text, owner text) IS 'The work for a key that the caller began failed, and may be begun again. Argument owner is optional.';

CREATE FUNCTION kafka.mark_key(marked_topic_id integer, marked_group_id text, marked_tenant text, marked_key text, marker text, new_status text, reason text, result text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    found_key kafka.idempotency_keys;
BEGIN
    UPDATE kafka.idempotency_keys k
    SET status = new_status, lease_until = NULL, updated_at = clock_timestamp(),
        last_error = coalesce(reason, k.last_error), result_reference = coalesce(result, k.result_reference)
    WHERE k.topic_id = marked_topic_id AND k.group_id = marked_group_id AND k.tenant = marked_tenant
      AND k.key = marked_key AND k.status = 'PENDING' AND k.producer_id IS NULL AND k.owner = marker;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO found_key FROM kafka.idempotency_keys k
    WHERE k.topic_id = marked_topic_id AND k.group_id = marked_group_id AND k.tenant = marked_tenant
      AND k.key = marked_key;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the key % was never begun', quote_literal(marked_key) USING ERRCODE = 'TW002';
    END IF;
    IF found_key.status = new_status AND found_key.owner = marker THEN
        RETURN;  -- said twice by the same caller
    END IF;
    RAISE EXCEPTION 'the key % is not held by % (any more)', quote_literal(marked_key), marker
        USING ERRCODE = 'TW001',
              DETAIL = format('It is %s, its owner is %s.', found_key.status, coalesce(found_key.owner, 'a producer')),
              HINT = 'What was done for it must be rolled back: somebody else has begun it.';
END
$$;

COMMENT ON FUNCTION kafka.mark_key(marked_topic_id integer, marked_group_id text, marked_tenant text, marked_key text, marker text, new_status text, reason text, result text) IS 'What kafka.mark_success and kafka.mark_failure do to the registry.';

CREATE FUNCTION kafka.mark_success(tenant text, topic text, group_id text, key text, result text DEFAULT NULL::text, owner text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF coalesce(key, '') <> '' THEN
        PERFORM kafka.mark_key(
            kafka.require_topic(topic), coalesce(group_id, ''), coalesce(tenant, ''), key,
            coalesce(nullif(owner, ''), kafka.session_owner()), 'COMMITTED', NULL, result);
    END IF;
END
$$;

COMMENT ON FUNCTION kafka.mark_success(tenant text, topic text, group_id text, key text, result text, owner text) IS 'The work for a key that the caller began is done. An error if somebody else has begun it since. Arguments result and owner are optional.';

CREATE FUNCTION kafka.move_worker_group(of_group text, of_topic_id integer, of_partition integer, new_start bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;

COMMENT ON FUNCTION kafka.move_worker_group(of_group text, of_topic_id integer, of_partition integer, new_start bigint) IS 'Settles everything below an offset. For the functions beside it.';

CREATE FUNCTION kafka.pipeline_begin(pipeline text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM kafka.pipeline_create(pipeline_begin.pipeline);
    RETURN kafka.pipeline_lock(pipeline_begin.pipeline);
END
$$;

COMMENT ON FUNCTION kafka.pipeline_begin(pipeline text) IS 'As kafka.pipeline_lock; makes the pipeline if it is not there. First call of a batch''s transaction.';

CREATE FUNCTION kafka.pipeline_commit(pipeline text, batch_id bigint, topic_ids integer[], partitions integer[], next_offsets bigint[], rows bigint DEFAULT 0) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    last_batch bigint;
    oldest_batch bigint;
BEGIN
    last_batch := kafka.pipeline_begin(pipeline_commit.pipeline);
    IF pipeline_commit.batch_id <= last_batch THEN
        RETURN false;
    END IF;
    IF pipeline_commit.batch_id IS DISTINCT FROM last_batch + 1 THEN
        RAISE EXCEPTION 'pipeline % commits batch % next, not %', pipeline_commit.pipeline, last_batch + 1,
            coalesce(pipeline_commit.batch_id::text, 'null') USING ERRCODE = '22023';
    END IF;
    IF cardinality(topic_ids) IS DISTINCT FROM cardinality(partitions)
            OR cardinality(topic_ids) IS DISTINCT FROM cardinality(next_offsets) THEN
        RAISE EXCEPTION 'the arrays of topic ids, partitions and next offsets differ in length'
            USING ERRCODE = '22023';
    END IF;

    INSERT INTO kafka.pipeline_positions (pipeline, topic_id, partition, next_offset)
    SELECT pipeline_commit.pipeline, moved.topic_id, moved.partition, moved.next_offset
    FROM unnest(topic_ids, partitions, next_offsets) AS moved (topic_id, partition, next_offset)
    ORDER BY moved.topic_id, moved.partition
    ON CONFLICT (pipeline, topic_id, partition) DO UPDATE
    SET next_offset = excluded.next_offset, updated_at = now();

    INSERT INTO kafka.pipeline_checkpoints (pipeline, batch_id, rows, positions, seals)
    SELECT pipeline_commit.pipeline, pipeline_commit.batch_id, pipeline_commit.rows,
           coalesce((SELECT jsonb_agg(jsonb_build_object('topic', t.name, 'topic_id', o.topic_id,
                        'partition', o.partition, 'next_offset', o.next_offset) ORDER BY t.name, o.partition)
                     FROM kafka.pipeline_positions o JOIN kafka.topics t USING (topic_id)
                     WHERE o.pipeline = pipeline_commit.pipeline), '[]'),
           coalesce((SELECT jsonb_object_agg(n.namespace, jsonb_build_array(n.sealed_epoch, n.sealed_round))
                     FROM kafka.state_namespaces n
                     WHERE n.pipeline = pipeline_commit.pipeline AND n.sealed_epoch IS NOT NULL), '{}');

    UPDATE kafka.pipelines p SET batch_id = pipeline_commit.batch_id, updated_at = now()
    WHERE p.name = pipeline_commit.pipeline;

    DELETE FROM kafka.pipeline_checkpoints c USING kafka.pipelines p
    WHERE p.name = pipeline_commit.pipeline AND c.pipeline = p.name AND c.batch_id <= p.batch_id - p.checkpoints_kept;
    SELECT min(c.batch_id) INTO oldest_batch FROM kafka.pipeline_checkpoints c
    WHERE c.pipeline = pipeline_commit.pipeline;
    DELETE FROM kafka.state_history h USING kafka.state_namespaces n
    WHERE n.pipeline = pipeline_commit.pipeline AND h.namespace = n.namespace AND h.batch_id <= oldest_batch;
    DELETE FROM kafka.state_buffer b USING kafka.state_namespaces n
    WHERE n.pipeline = pipeline_commit.pipeline AND b.namespace = n.namespace AND b.removed_in <= oldest_batch;
    RETURN true;
END
$$;

COMMENT ON FUNCTION kafka.pipeline_commit(pipeline text, batch_id bigint, topic_ids integer[], partitions integer[], next_offsets bigint[], rows bigint) IS 'Last call of a batch''s transaction: moves the positions and makes the checkpoint. False if the batch was committed before: then roll back.';

CREATE FUNCTION kafka.pipeline_create(pipeline text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF coalesce(octet_length(pipeline_create.pipeline), 0) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a pipeline has a name of 1 to 200 bytes' USING ERRCODE = '22023';
    END IF;
    INSERT INTO kafka.pipelines (name) VALUES (pipeline_create.pipeline) ON CONFLICT (name) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO kafka.pipeline_checkpoints (pipeline, batch_id) VALUES (pipeline_create.pipeline, 0);
    RETURN true;
END
$$;

COMMENT ON FUNCTION kafka.pipeline_create(pipeline text) IS 'Makes a pipeline with its empty checkpoint 0; false if it is there.';

CREATE FUNCTION kafka.pipeline_drop(pipeline text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM kafka.pipeline_lock(pipeline_drop.pipeline);
    PERFORM kafka.state_drop(n.namespace) FROM kafka.state_namespaces n WHERE n.pipeline = pipeline_drop.pipeline;
    DELETE FROM kafka.pipelines p WHERE p.name = pipeline_drop.pipeline;
END
$$;

COMMENT ON FUNCTION kafka.pipeline_drop(pipeline text) IS 'Removes a pipeline with its namespaces.';

CREATE FUNCTION kafka.pipeline_go_back(pipeline text, batch_id bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    checkpoint kafka.pipeline_checkpoints;
    kept text;
    undone bigint;
BEGIN
    PERFORM kafka.pipeline_lock(pipeline_go_back.pipeline);
    SELECT * INTO checkpoint FROM kafka.pipeline_checkpoints c
    WHERE c.pipeline = pipeline_go_back.pipeline AND c.batch_id = pipeline_go_back.batch_id;
    IF NOT FOUND THEN
        SELECT format('%s to %s', min(c.batch_id), max(c.batch_id)) INTO kept
        FROM kafka.pipeline_checkpoints c WHERE c.pipeline = pipeline_go_back.pipeline;
        RAISE EXCEPTION 'pipeline % has no checkpoint %: kept are %', pipeline_go_back.pipeline,
            coalesce(pipeline_go_back.batch_id::text, 'null'), kept USING ERRCODE = 'TWS03';
    END IF;

    -- A key becomes what it was before the first of the batches that are undone changed it.
    WITH dropped AS (
        DELETE FROM kafka.state_history h USING kafka.state_namespaces n
        WHERE n.pipeline = checkpoint.pipeline AND h.namespace = n.namespace AND h.batch_id > checkpoint.batch_id
        RETURNING h.namespace, h.key, h.batch_id, h.epoch, h.round, h.value
    ), before AS MATERIALIZED (
        SELECT DISTINCT ON (d.namespace, d.key) d.* FROM dropped d ORDER BY d.namespace, d.key, d.batch_id
    ), unborn AS (
        DELETE FROM kafka.state s USING before
        WHERE before.epoch IS NULL AND s.namespace = before.namespace AND s.key = before.key
    ), restored AS (
        INSERT INTO kafka.state (namespace, key, epoch, round, value)
        SELECT before.namespace, before.key, before.epoch, before.round, before.value
        FROM before WHERE before.epoch IS NOT NULL
        ON CONFLICT (namespace, key) DO UPDATE SET
            epoch = excluded.epoch, round = excluded.round, value = excluded.value, updated_at = now()
    )
    SELECT count(*) INTO undone FROM before;

    DELETE FROM kafka.state_buffer b USING kafka.state_namespaces n
    WHERE n.pipeline = checkpoint.pipeline AND b.namespace = n.namespace AND b.added_in > checkpoint.batch_id;
    UPDATE kafka.state_buffer b SET removed_in = NULL FROM kafka.state_namespaces n
    WHERE n.pipeline = checkpoint.pipeline AND b.namespace = n.namespace AND b.removed_in > checkpoint.batch_id;
    UPDATE kafka.state_namespaces n
    SET sealed_epoch = (checkpoint.seals -> n.namespace ->> 0)::bigint,
        sealed_round = (checkpoint.seals -> n.namespace ->> 1)::bigint
    WHERE n.pipeline = checkpoint.pipeline;

    DELETE FROM kafka.pipeline_positions o WHERE o.pipeline = checkpoint.pipeline;
    -- A topic that was deleted meanwhile has no position to go back to.
    INSERT INTO kafka.pipeline_positions (pipeline, topic_id, partition, next_offset)
    SELECT checkpoint.pipeline, was.topic_id, was.partition, was.next_offset
    FROM jsonb_to_recordset(checkpoint.positions) AS was (topic_id integer, partition integer, next_offset bigint)
    JOIN kafka.topics t ON t.topic_id = was.topic_id;
    DELETE FROM kafka.pipeline_checkpoints c
    WHERE c.pipeline = checkpoint.pipeline AND c.batch_id > checkpoint.batch_id;
    UPDATE kafka.pipelines p SET batch_id = checkpoint.batch_id, updated_at = now()
    WHERE p.name = checkpoint.pipeline;
    RETURN undone;
END
$$;

COMMENT ON FUNCTION kafka.pipeline_go_back(pipeline text, batch_id bigint) IS 'Makes state, seals and positions of a pipeline what they were right after a batch; answers how many keys changed.';

CREATE FUNCTION kafka.pipeline_lock(pipeline text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    last_batch bigint;
BEGIN
    -- Lock order: the pipeline, its namespaces in order, keys.
    SELECT p.batch_id INTO last_batch FROM kafka.pipelines p
    WHERE p.name = pipeline_lock.pipeline FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no pipeline %', coalesce(pipeline_lock.pipeline, 'null')
            USING ERRCODE = 'TWS02', HINT = 'see kafka.pipelines';
    END IF;
    PERFORM FROM kafka.state_namespaces n
    WHERE n.pipeline = pipeline_lock.pipeline ORDER BY n.namespace FOR NO KEY UPDATE;
    RETURN last_batch;
END
$$;

COMMENT ON FUNCTION kafka.pipeline_lock(pipeline text) IS 'Locks a pipeline and its namespaces until the transaction ends; answers its last committed batch.';

CREATE FUNCTION kafka.pipeline_reset(pipeline text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM kafka.pipeline_lock(pipeline_reset.pipeline);
    DELETE FROM kafka.state s USING kafka.state_namespaces n
    WHERE n.pipeline = pipeline_reset.pipeline AND s.namespace = n.namespace;
    DELETE FROM kafka.state_history h USING kafka.state_namespaces n
    WHERE n.pipeline = pipeline_reset.pipeline AND h.namespace = n.namespace;
    DELETE FROM kafka.state_buffer b USING kafka.state_namespaces n
    WHERE n.pipeline = pipeline_reset.pipeline AND b.namespace = n.namespace;
    UPDATE kafka.state_namespaces n SET sealed_epoch = NULL, sealed_round = NULL
    WHERE n.pipeline = pipeline_reset.pipeline;
    DELETE FROM kafka.pipeline_positions o WHERE o.pipeline = pipeline_reset.pipeline;
    DELETE FROM kafka.pipeline_checkpoints c WHERE c.pipeline = pipeline_reset.pipeline;
    INSERT INTO kafka.pipeline_checkpoints (pipeline, batch_id) VALUES (pipeline_reset.pipeline, 0);
    UPDATE kafka.pipelines p SET batch_id = 0, updated_at = now(), last_error = NULL, last_error_at = NULL
    WHERE p.name = pipeline_reset.pipeline;
END
$$;

COMMENT ON FUNCTION kafka.pipeline_reset(pipeline text) IS 'Empties a pipeline: no positions, no state, batch 0.';

CREATE FUNCTION kafka.require_topic(topic text) RETURNS integer
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    found_id integer;
BEGIN
    SELECT t.topic_id INTO found_id FROM kafka.topics t WHERE t.name = require_topic.topic;
    IF found_id IS NULL THEN
        RAISE EXCEPTION 'no topic %', coalesce(quote_literal(topic), 'null') USING ERRCODE = 'TW003';
    END IF;
    RETURN found_id;
END
$$;

COMMENT ON FUNCTION kafka.require_topic(topic text) IS 'The id of a topic by its name; an error if there is none.';

CREATE FUNCTION kafka.require_worker_group(of_group text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;

COMMENT ON FUNCTION kafka.require_worker_group(of_group text) IS 'Raises TW004 unless the group exists and no consumer is in it; keeps it so until the transaction ends.';

CREATE FUNCTION kafka.session_owner() RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT format('%s@%s', pg_backend_pid(), extract(epoch FROM pg_postmaster_start_time())::bigint)
$$;

COMMENT ON FUNCTION kafka.session_owner() IS 'Who begins and marks keys without a name: this database session.';

CREATE FUNCTION kafka.settle_deliveries(of_group text, topic_ids integer[], partitions integer[], offsets bigint[], attempts integer[], workers text[], states text[], delays_ms bigint[], errors text[], are_uncounted boolean[], must_be_expired boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;

COMMENT ON FUNCTION kafka.settle_deliveries(of_group text, topic_ids integer[], partitions integer[], offsets bigint[], attempts integer[], workers text[], states text[], delays_ms bigint[], errors text[], are_uncounted boolean[], must_be_expired boolean) IS 'Answers deliveries: acknowledged, archived, or available again after a delay; moves the group''s committed offset to the first unsettled one. Raises TW005 when one of them is not the worker''s any more.';

CREATE FUNCTION kafka.settle_keys() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
    settled integer;
BEGIN
    -- In the order in which producers claim keys.
    PERFORM FROM kafka.idempotency_keys k
    WHERE k.producer_id = OLD.producer_id AND k.status <> 'COMMITTED'
    ORDER BY k.topic_id, k.group_id, k.tenant, k.key FOR UPDATE;
    IF FOUND THEN
        UPDATE kafka.idempotency_keys k
        SET status = CASE WHEN NEW.state = 'CompleteCommit' THEN 'COMMITTED' ELSE 'FAILED' END,
            last_error = CASE WHEN NEW.state = 'CompleteCommit' THEN k.last_error
                              ELSE 'the transaction was aborted' END,
            producer_id = NULL, updated_at = now()
        WHERE k.producer_id = OLD.producer_id AND k.status <> 'COMMITTED';
        GET DIAGNOSTICS settled = ROW_COUNT;
        PERFORM set_config('tablewire.settled_keys', settled::text, true);
    END IF;
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION kafka.settle_keys() IS 'With the end of a transaction its keys are COMMITTED or FAILED.';

CREATE FUNCTION kafka.state_apply(namespace text, staging regclass) RETURNS TABLE(outcome text, puts bigint, first_key bytea, first_epoch bigint, first_round bigint)
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM kafka.state_apply_from(
        namespace, format('(SELECT key, value, epoch, round FROM %s)', staging), NULL, NULL, NULL, NULL)
$$;

COMMENT ON FUNCTION kafka.state_apply(namespace text, staging regclass) IS 'Puts all rows (key, value, epoch, round) of a table, as kafka.state_put_all does.';

CREATE FUNCTION kafka.state_apply_from(namespace text, source text, keys bytea[], contents bytea[], epochs bigint[], rounds bigint[]) RETURNS TABLE(outcome text, puts bigint, first_key bytea, first_epoch bigint, first_round bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    space kafka.state_namespaces;
    bad record;
BEGIN
    space := kafka.state_lock(state_apply_from.namespace, true);
    FOR bad IN EXECUTE format('
        SELECT put.key, put.value, put.epoch, put.round FROM %s AS put (key, value, epoch, round)
        WHERE put.key IS NULL OR octet_length(put.key) > 2048 OR octet_length(put.value) > 67108864
           OR put.epoch IS NULL OR put.round IS NULL OR put.epoch < 0 OR put.round < 0
        LIMIT 1', source) USING keys, contents, epochs, rounds
    LOOP
        PERFORM kafka.state_check(bad.key, bad.value, bad.epoch, bad.round);
    END LOOP;

    RETURN QUERY EXECUTE format('
        WITH put AS (
            SELECT put.key, put.value, put.epoch, put.round, row_number() OVER copies AS copy,
                   first_value(put.value) OVER copies IS DISTINCT FROM last_value(put.value) OVER copies AS differs
            FROM %s AS put (key, value, epoch, round)
            WINDOW copies AS (PARTITION BY put.key, put.epoch, put.round ORDER BY put.value
                              ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
        ), judged AS MATERIALIZED (
            SELECT put.key, put.value, put.epoch, put.round,
                   s.epoch AS held_epoch, s.round AS held_round, s.value AS held_value,
                   CASE
                       WHEN put.differs THEN ''conflict''
                       WHEN $6 = ''sealed'' AND ($7 IS NULL OR (put.epoch, put.round) > ($7, $8)) THEN
                           CASE WHEN b.key IS NULL AND put.copy = 1 THEN ''buffered''
                                WHEN b.key IS NULL OR b.value IS NOT DISTINCT FROM put.value THEN ''unchanged''
                                ELSE ''conflict'' END
                       WHEN (s.epoch, s.round) = (put.epoch, put.round) THEN
                           CASE WHEN s.value IS NOT DISTINCT FROM put.value THEN ''unchanged''
                                ELSE ''conflict'' END
                       WHEN $6 = ''sealed'' THEN ''late''
                       WHEN s.key IS NULL OR (s.epoch, s.round) < (put.epoch, put.round) THEN
                           CASE WHEN put.copy = 1 THEN ''applied'' ELSE ''unchanged'' END
                       ELSE ''stale''
                   END AS outcome
            FROM put
            LEFT JOIN kafka.state s ON s.namespace = $5 AND s.key = put.key
            LEFT JOIN kafka.state_buffer b ON $6 = ''sealed'' AND b.namespace = $5 AND b.key = put.key
                AND b.epoch = put.epoch AND b.round = put.round AND b.removed_in IS NULL
        ), newest AS MATERIALIZED (
            SELECT DISTINCT ON (judged.key) judged.* FROM judged WHERE judged.outcome = ''applied''
            ORDER BY judged.key, judged.epoch DESC, judged.round DESC
        ), remembered AS (
            INSERT INTO kafka.state_history (namespace, batch_id, key, epoch, round, value)
            SELECT $5, $9, newest.key, newest.held_epoch, newest.held_round, newest.held_value
            FROM newest WHERE $9 IS NOT NULL
            ON CONFLICT (namespace, batch_id, key) DO NOTHING
        ), written AS (
            INSERT INTO kafka.state (namespace, key, epoch, round, value)
            SELECT $5, newest.key, newest.epoch, newest.round, newest.value FROM newest
            ON CONFLICT (namespace, key) DO UPDATE SET
                epoch = excluded.epoch, round = excluded.round, value = excluded.value, updated_at = now()
        ), kept AS (
            INSERT INTO kafka.state_buffer (namespace, key, epoch, round, value, added_in)
            SELECT $5, judged.key, judged.epoch, judged.round, judged.value, coalesce($9, 0)
            FROM judged WHERE judged.outcome = ''buffered''
        )
        SELECT judged.outcome, count(*),
               (array_agg(judged.key ORDER BY judged.key, judged.epoch, judged.round)
                    FILTER (WHERE judged.outcome IN (''conflict'', ''late'')))[1],
               (array_agg(judged.epoch ORDER BY judged.key, judged.epoch, judged.round)
                    FILTER (WHERE judged.outcome IN (''conflict'', ''late'')))[1],
               (array_agg(judged.round ORDER BY judged.key, judged.epoch, judged.round)
                    FILTER (WHERE judged.outcome IN (''conflict'', ''late'')))[1]
        FROM judged GROUP BY judged.outcome ORDER BY judged.outcome', source)
    USING keys, contents, epochs, rounds, space.namespace, space.ordering, space.sealed_epoch, space.sealed_round,
          kafka.state_batch(space.pipeline);
END
$_$;

COMMENT ON FUNCTION kafka.state_apply_from(namespace text, source text, keys bytea[], contents bytea[], epochs bigint[], rounds bigint[]) IS 'Called by kafka.state_put_all and kafka.state_apply.';

CREATE FUNCTION kafka.state_batch(pipeline text) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT p.batch_id + 1 FROM kafka.pipelines p WHERE p.name = state_batch.pipeline
$$;

COMMENT ON FUNCTION kafka.state_batch(pipeline text) IS 'The batch that a pipeline commits next: changes are remembered under it.';

CREATE FUNCTION kafka.state_check(key bytea, value bytea, epoch bigint, round bigint) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF key IS NULL OR octet_length(key) > 2048 THEN
        RAISE EXCEPTION 'a key has at most 2048 bytes and is not null; this one has %',
            coalesce(octet_length(key)::text, 'none') USING ERRCODE = '22023';
    END IF;
    IF octet_length(value) > 67108864 THEN
        RAISE EXCEPTION 'a value has at most 67108864 bytes; this one has %', octet_length(value)
            USING ERRCODE = '22023';
    END IF;
    IF epoch IS NULL OR round IS NULL OR epoch < 0 OR round < 0 THEN
        RAISE EXCEPTION 'a version is an epoch and a round of 0 or more, not (%, %)',
            coalesce(epoch::text, 'null'), coalesce(round::text, 'null') USING ERRCODE = '22023';
    END IF;
END
$$;

COMMENT ON FUNCTION kafka.state_check(key bytea, value bytea, epoch bigint, round bigint) IS 'Refuses a key, value or version outside the limits.';

CREATE FUNCTION kafka.state_create(namespace text, ordering text DEFAULT 'latest'::text, pipeline text DEFAULT NULL::text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    existing kafka.state_namespaces;
BEGIN
    IF coalesce(octet_length(state_create.namespace), 0) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a namespace has a name of 1 to 200 bytes' USING ERRCODE = '22023';
    END IF;
    IF state_create.ordering IS NULL OR state_create.ordering NOT IN ('latest', 'sealed') THEN
        RAISE EXCEPTION 'ordering is latest or sealed, not %', coalesce(state_create.ordering, 'null')
            USING ERRCODE = '22023';
    END IF;
    IF state_create.pipeline IS NOT NULL THEN
        PERFORM kafka.pipeline_create(state_create.pipeline);
    END IF;
    INSERT INTO kafka.state_namespaces (namespace, ordering, pipeline)
    VALUES (state_create.namespace, state_create.ordering, state_create.pipeline)
    ON CONFLICT (namespace) DO NOTHING;
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT * INTO existing FROM kafka.state_namespaces n WHERE n.namespace = state_create.namespace;
    IF existing.ordering <> state_create.ordering OR existing.pipeline IS DISTINCT FROM state_create.pipeline THEN
        RAISE EXCEPTION 'namespace % exists with ordering % and pipeline %', state_create.namespace,
            existing.ordering, coalesce(existing.pipeline, '(none)') USING ERRCODE = 'TWS04';
    END IF;
    RETURN false;
END
$$;

COMMENT ON FUNCTION kafka.state_create(namespace text, ordering text, pipeline text) IS 'Makes a namespace, ordering latest or sealed, on its own or part of a pipeline. False if it is there already; an error if it is there with other settings.';

CREATE FUNCTION kafka.state_delete(namespace text, key bytea, version bigint) RETURNS text
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT kafka.state_put(namespace, key, NULL, 0, version)
$$;

COMMENT ON FUNCTION kafka.state_delete(namespace text, key bytea, version bigint) IS 'Deletes a key at version (0, version).';

CREATE FUNCTION kafka.state_delete(namespace text, key bytea, epoch bigint, round bigint) RETURNS text
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT kafka.state_put(namespace, key, NULL, epoch, round)
$$;

COMMENT ON FUNCTION kafka.state_delete(namespace text, key bytea, epoch bigint, round bigint) IS 'Deletes a key at version (epoch, round); answers as kafka.state_put does.';

CREATE FUNCTION kafka.state_drop(namespace text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    PERFORM kafka.state_lock(state_drop.namespace, true);
    DELETE FROM kafka.state s WHERE s.namespace = state_drop.namespace;
    DELETE FROM kafka.state_history h WHERE h.namespace = state_drop.namespace;
    DELETE FROM kafka.state_buffer b WHERE b.namespace = state_drop.namespace;
    DELETE FROM kafka.state_namespaces n WHERE n.namespace = state_drop.namespace;
END
$$;

COMMENT ON FUNCTION kafka.state_drop(namespace text) IS 'Removes a namespace and all it holds.';

CREATE FUNCTION kafka.state_get(namespace text, key bytea) RETURNS bytea
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM kafka.state_namespaces n WHERE n.namespace = state_get.namespace) THEN
        RAISE EXCEPTION 'no namespace %', coalesce(state_get.namespace, 'null')
            USING ERRCODE = 'TWS01', HINT = 'kafka.state_create makes one; see kafka.state_namespaces';
    END IF;
    RETURN (SELECT s.value FROM kafka.state s WHERE s.namespace = state_get.namespace AND s.key = state_get.key);
END
$$;

COMMENT ON FUNCTION kafka.state_get(namespace text, key bytea) IS 'The value of a key; null if there is none.';

CREATE FUNCTION kafka.state_json(value bytea) RETURNS jsonb
    LANGUAGE sql IMMUTABLE STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT convert_from(value, 'UTF8')::jsonb
$$;

COMMENT ON FUNCTION kafka.state_json(value bytea) IS 'A value that is JSON, as jsonb.';

CREATE TABLE kafka.state_namespaces (
    sealed_epoch bigint,
    sealed_round bigint,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    namespace text NOT NULL COLLATE pg_catalog."C",
    ordering text DEFAULT 'latest'::text NOT NULL,
    pipeline text COLLATE pg_catalog."C",
    CONSTRAINT state_namespaces_check CHECK (((sealed_epoch IS NULL) = (sealed_round IS NULL))),
    CONSTRAINT state_namespaces_namespace_check CHECK (((octet_length(namespace) >= 1) AND (octet_length(namespace) <= 200))),
    CONSTRAINT state_namespaces_ordering_check CHECK ((ordering = ANY (ARRAY['latest'::text, 'sealed'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='200');

COMMENT ON TABLE kafka.state_namespaces IS 'Namespaces of kafka.state. Every change locks its row first.';

COMMENT ON COLUMN kafka.state_namespaces.sealed_epoch IS 'Versions up to (sealed_epoch, sealed_round) are complete and applied; null before the first seal and where nothing is sealed.';

COMMENT ON COLUMN kafka.state_namespaces.sealed_round IS 'See sealed_epoch.';

COMMENT ON COLUMN kafka.state_namespaces.created_at IS 'When it was made.';

COMMENT ON COLUMN kafka.state_namespaces.namespace IS 'Its name.';

COMMENT ON COLUMN kafka.state_namespaces.ordering IS 'latest: a newer version replaces an older one at once; sealed: versions wait in kafka.state_buffer until they are sealed.';

COMMENT ON COLUMN kafka.state_namespaces.pipeline IS 'The pipeline whose checkpoints cover it; null if none does.';

CREATE FUNCTION kafka.state_lock(namespace text, alone boolean) RETURNS kafka.state_namespaces
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    existing kafka.state_namespaces;
BEGIN
    IF alone THEN
        SELECT * INTO existing FROM kafka.state_namespaces n
        WHERE n.namespace = state_lock.namespace FOR NO KEY UPDATE;
    ELSE
        SELECT * INTO existing FROM kafka.state_namespaces n WHERE n.namespace = state_lock.namespace FOR SHARE;
    END IF;
    IF existing.namespace IS NULL THEN
        RAISE EXCEPTION 'no namespace %', coalesce(state_lock.namespace, 'null')
            USING ERRCODE = 'TWS01', HINT = 'kafka.state_create makes one; see kafka.state_namespaces';
    END IF;
    RETURN existing;
END
$$;

COMMENT ON FUNCTION kafka.state_lock(namespace text, alone boolean) IS 'Locks a namespace, shared or alone; called by the functions that change it.';

CREATE FUNCTION kafka.state_put(namespace text, key bytea, value bytea, version bigint) RETURNS text
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT kafka.state_put(namespace, key, value, 0, version)
$$;

COMMENT ON FUNCTION kafka.state_put(namespace text, key bytea, value bytea, version bigint) IS 'Puts a value at version (0, version), as for an offset.';

CREATE FUNCTION kafka.state_put(namespace text, key bytea, value bytea, epoch bigint, round bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    space kafka.state_namespaces;
    held kafka.state;
    waiting kafka.state_buffer;
    batch bigint;
BEGIN
    PERFORM kafka.state_check(state_put.key, state_put.value, state_put.epoch, state_put.round);
    space := kafka.state_lock(state_put.namespace, false);
    batch := kafka.state_batch(space.pipeline);

    IF space.ordering = 'sealed' AND (space.sealed_epoch IS NULL
            OR (state_put.epoch, state_put.round) > (space.sealed_epoch, space.sealed_round)) THEN
        INSERT INTO kafka.state_buffer (namespace, key, epoch, round, value, added_in)
        VALUES (state_put.namespace, state_put.key, state_put.epoch, state_put.round, state_put.value,
                coalesce(batch, 0))
        -- Whichever of the two unique indexes another put of this version is met in first.
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN 'buffered';
        END IF;
        SELECT * INTO waiting FROM kafka.state_buffer b
        WHERE b.namespace = state_put.namespace AND b.key = state_put.key
          AND b.epoch = state_put.epoch AND b.round = state_put.round AND b.removed_in IS NULL;
        RETURN CASE WHEN waiting.value IS NOT DISTINCT FROM state_put.value THEN 'unchanged' ELSE 'conflict' END;
    END IF;

    LOOP
        SELECT * INTO held FROM kafka.state s
        WHERE s.namespace = state_put.namespace AND s.key = state_put.key FOR UPDATE;
        EXIT WHEN FOUND;
        IF space.ordering = 'sealed' THEN
            RETURN 'late';
        END IF;
        -- Somebody may put the same new key at the same time: one inserts, the other finds it in the next round.
        INSERT INTO kafka.state (namespace, key, epoch, round, value)
        VALUES (state_put.namespace, state_put.key, state_put.epoch, state_put.round, state_put.value)
        ON CONFLICT (namespace, key) DO NOTHING;
        IF FOUND THEN
            IF batch IS NOT NULL THEN
                INSERT INTO kafka.state_history (namespace, batch_id, key)
                VALUES (state_put.namespace, batch, state_put.key)
                ON CONFLICT (namespace, batch_id, key) DO NOTHING;
            END IF;
            RETURN 'applied';
        END IF;
    END LOOP;

    IF (held.epoch, held.round) = (state_put.epoch, state_put.round) THEN
        RETURN CASE WHEN held.value IS NOT DISTINCT FROM state_put.value THEN 'unchanged' ELSE 'conflict' END;
    ELSIF space.ordering = 'sealed' THEN
        RETURN 'late';
    ELSIF (held.epoch, held.round) > (state_put.epoch, state_put.round) THEN
        RETURN 'stale';
    END IF;
    IF batch IS NOT NULL THEN
        INSERT INTO kafka.state_history (namespace, batch_id, key, epoch, round, value)
        VALUES (held.namespace, batch, held.key, held.epoch, held.round, held.value)
        ON CONFLICT (namespace, batch_id, key) DO NOTHING;
    END IF;
    UPDATE kafka.state s
    SET epoch = state_put.epoch, round = state_put.round, value = state_put.value, updated_at = now()
    WHERE s.namespace = state_put.namespace AND s.key = state_put.key;
    RETURN 'applied';
END
$$;

COMMENT ON FUNCTION kafka.state_put(namespace text, key bytea, value bytea, epoch bigint, round bigint) IS 'Puts a value at version (epoch, round): applied, unchanged, stale or conflict; in sealed namespaces buffered, unchanged, late or conflict.';

CREATE FUNCTION kafka.state_put_all(namespace text, keys bytea[], contents bytea[], epochs bigint[], rounds bigint[]) RETURNS TABLE(outcome text, puts bigint, first_key bytea, first_epoch bigint, first_round bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
BEGIN
    IF cardinality(keys) IS DISTINCT FROM cardinality(contents) OR cardinality(keys) IS DISTINCT FROM
            cardinality(epochs) OR cardinality(keys) IS DISTINCT FROM cardinality(rounds) THEN
        RAISE EXCEPTION 'the arrays of keys, contents, epochs and rounds differ in length' USING ERRCODE = '22023';
    END IF;
    RETURN QUERY SELECT * FROM kafka.state_apply_from(
        state_put_all.namespace, 'unnest($1, $2, $3, $4)', keys, contents, epochs, rounds);
END
$_$;

COMMENT ON FUNCTION kafka.state_put_all(namespace text, keys bytea[], contents bytea[], epochs bigint[], rounds bigint[]) IS 'Puts many at once, judged as if in version order: how many had which outcome, and the first conflict or late one.';

CREATE FUNCTION kafka.state_replace(namespace text, staging regclass, keys bytea[], sealed_epoch bigint, sealed_round bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    space kafka.state_namespaces;
    batch bigint;
    replaced bigint;
BEGIN
    space := kafka.state_lock(state_replace.namespace, true);
    batch := kafka.state_batch(space.pipeline);
    IF batch IS NOT NULL THEN
        EXECUTE format('
            INSERT INTO kafka.state_history (namespace, batch_id, key, epoch, round, value)
            SELECT $1, $2, coalesce(s.key, put.key), s.epoch, s.round, s.value
            FROM (SELECT * FROM kafka.state s WHERE s.namespace = $1 AND ($3 IS NULL OR s.key = ANY ($3))) s
            FULL JOIN (SELECT put.key FROM %s put WHERE NOT put.is_buffered) put ON put.key = s.key
            ON CONFLICT (namespace, batch_id, key) DO NOTHING', staging)
        USING space.namespace, batch, state_replace.keys;
    END IF;
    DELETE FROM kafka.state s
    WHERE s.namespace = space.namespace AND (state_replace.keys IS NULL OR s.key = ANY (state_replace.keys));
    PERFORM kafka.state_unbuffer(space.namespace, batch, NULL, NULL, state_replace.keys);
    EXECUTE format('
        WITH kept AS (
            INSERT INTO kafka.state_buffer (namespace, key, epoch, round, value, added_in)
            SELECT $1, put.key, put.epoch, put.round, put.value, coalesce($2, 0) FROM %1$s put WHERE put.is_buffered
        )
        INSERT INTO kafka.state (namespace, key, epoch, round, value)
        SELECT $1, put.key, put.epoch, put.round, put.value FROM %1$s put WHERE NOT put.is_buffered', staging)
    USING space.namespace, batch;
    GET DIAGNOSTICS replaced = ROW_COUNT;
    IF state_replace.keys IS NULL THEN
        UPDATE kafka.state_namespaces n
        SET sealed_epoch = state_replace.sealed_epoch, sealed_round = state_replace.sealed_round
        WHERE n.namespace = space.namespace;
    END IF;
    RETURN replaced;
END
$_$;

COMMENT ON FUNCTION kafka.state_replace(namespace text, staging regclass, keys bytea[], sealed_epoch bigint, sealed_round bigint) IS 'Makes a namespace, or chosen keys of it, what a table of a restored snapshot holds.';

CREATE FUNCTION kafka.state_seal(namespace text, version bigint) RETURNS TABLE(key bytea, applied_epoch bigint, applied_round bigint, value bytea)
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM kafka.state_seal(namespace, 0, version)
$$;

COMMENT ON FUNCTION kafka.state_seal(namespace text, version bigint) IS 'Seals up to version (0, version).';

CREATE FUNCTION kafka.state_seal(namespace text, epoch bigint, round bigint) RETURNS TABLE(key bytea, applied_epoch bigint, applied_round bigint, value bytea)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    space kafka.state_namespaces;
    batch bigint;
BEGIN
    PERFORM kafka.state_check('', NULL, state_seal.epoch, state_seal.round);
    space := kafka.state_lock(state_seal.namespace, true);
    IF space.ordering <> 'sealed' THEN
        RAISE EXCEPTION 'namespace % keeps the latest version: there is nothing to seal', space.namespace
            USING ERRCODE = 'TWS05';
    END IF;
    IF (space.sealed_epoch, space.sealed_round) >= (state_seal.epoch, state_seal.round) THEN
        RETURN;
    END IF;
    batch := kafka.state_batch(space.pipeline);

    RETURN QUERY
    SELECT b.key, b.epoch, b.round, b.value FROM kafka.state_buffer b
    WHERE b.namespace = space.namespace AND b.removed_in IS NULL
      AND (b.epoch, b.round) <= (state_seal.epoch, state_seal.round)
    ORDER BY b.epoch, b.round, b.key;

    WITH newest AS MATERIALIZED (
        SELECT DISTINCT ON (b.key) b.key, b.epoch, b.round, b.value FROM kafka.state_buffer b
        WHERE b.namespace = space.namespace AND b.removed_in IS NULL
          AND (b.epoch, b.round) <= (state_seal.epoch, state_seal.round)
        ORDER BY b.key, b.epoch DESC, b.round DESC
    ), remembered AS (
        INSERT INTO kafka.state_history (namespace, batch_id, key, epoch, round, value)
        SELECT space.namespace, batch, n.key, s.epoch, s.round, s.value
        FROM newest n LEFT JOIN kafka.state s ON s.namespace = space.namespace AND s.key = n.key
        WHERE batch IS NOT NULL
        ON CONFLICT (namespace, batch_id, key) DO NOTHING
    )
    INSERT INTO kafka.state (namespace, key, epoch, round, value)
    SELECT space.namespace, n.key, n.epoch, n.round, n.value FROM newest n
    ON CONFLICT (namespace, key) DO UPDATE SET
        epoch = excluded.epoch, round = excluded.round, value = excluded.value, updated_at = now();

    PERFORM kafka.state_unbuffer(space.namespace, batch, state_seal.epoch, state_seal.round, NULL);
    UPDATE kafka.state_namespaces n SET sealed_epoch = state_seal.epoch, sealed_round = state_seal.round
    WHERE n.namespace = space.namespace;
END
$$;

COMMENT ON FUNCTION kafka.state_seal(namespace text, epoch bigint, round bigint) IS 'Applies what waits up to version (epoch, round), which are then complete, and returns it in version order.';

CREATE FUNCTION kafka.state_unbuffer(namespace text, batch bigint, epoch bigint, round bigint, keys bytea[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM kafka.state_buffer b
    WHERE b.namespace = state_unbuffer.namespace AND b.removed_in IS NULL
      AND (state_unbuffer.epoch IS NULL OR (b.epoch, b.round) <= (state_unbuffer.epoch, state_unbuffer.round))
      AND (state_unbuffer.keys IS NULL OR b.key = ANY (state_unbuffer.keys))
      AND (state_unbuffer.batch IS NULL OR b.added_in >= state_unbuffer.batch);
    UPDATE kafka.state_buffer b SET removed_in = state_unbuffer.batch
    WHERE b.namespace = state_unbuffer.namespace AND b.removed_in IS NULL
      AND (state_unbuffer.epoch IS NULL OR (b.epoch, b.round) <= (state_unbuffer.epoch, state_unbuffer.round))
      AND (state_unbuffer.keys IS NULL OR b.key = ANY (state_unbuffer.keys));
END
$$;

COMMENT ON FUNCTION kafka.state_unbuffer(namespace text, batch bigint, epoch bigint, round bigint, keys bytea[]) IS 'Called by kafka.state_seal and kafka.state_replace.';

CREATE FUNCTION kafka.take_deliveries(taken_by text, of_group text, of_topic_id integer, max_records integer, lease_ms bigint, is_in_place boolean, max_unsettled bigint) RETURNS TABLE(partition integer, "offset" bigint, "timestamp" timestamp with time zone, key bytea, value bytea, header_names text[], header_values bytea[], attempts integer, last_error text, first_delivered_at timestamp with time zone, last_delivered_at timestamp with time zone)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;

COMMENT ON FUNCTION kafka.take_deliveries(taken_by text, of_group text, of_topic_id integer, max_records integer, lease_ms bigint, is_in_place boolean, max_unsettled bigint) IS 'Delivers records to a worker, counting the attempt and leasing them to it: either some that were never tried, or one that was.';

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
        CASE
            WHEN (m.header_names IS NULL) THEN '[]'::jsonb
            ELSE ( SELECT COALESCE(jsonb_agg(jsonb_build_object('name', h.name, 'value', encode(h.value, 'escape'::text)) ORDER BY h."position"), '[]'::jsonb) AS "coalesce"
               FROM UNNEST(m.header_names, m.header_values) WITH ORDINALITY h(name, value, "position"))
        END AS headers,
    m.producer_id,
    m.producer_epoch,
    m.topic_id
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

COMMENT ON COLUMN kafka.committed_messages.headers IS 'Headers as [{name, value}, …] in order; decode(value, ''escape'') gives the bytes of a value back.';

COMMENT ON COLUMN kafka.committed_messages.producer_id IS 'The producer that wrote it, see kafka.producer_ids.';

COMMENT ON COLUMN kafka.committed_messages.producer_epoch IS 'The producer''s epoch when it wrote it.';

COMMENT ON COLUMN kafka.committed_messages.topic_id IS 'The topic''s short id. Filter by it where there are thousands of topics: the query is planned in a fraction of the time.';

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

CREATE TABLE kafka.pipeline_positions (
    next_offset bigint NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    pipeline text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT pipeline_positions_next_offset_check CHECK ((next_offset >= 0)),
    CONSTRAINT pipeline_positions_partition_check CHECK ((partition >= 0))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500');

COMMENT ON TABLE kafka.pipeline_positions IS 'Where each pipeline goes on reading. See kafka.consumer_lag.';

COMMENT ON COLUMN kafka.pipeline_positions.next_offset IS 'The next offset the pipeline will read.';

COMMENT ON COLUMN kafka.pipeline_positions.updated_at IS 'When it moved there.';

COMMENT ON COLUMN kafka.pipeline_positions.topic_id IS 'The topic, see kafka.topics.';

COMMENT ON COLUMN kafka.pipeline_positions.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.pipeline_positions.pipeline IS 'The pipeline, see kafka.pipelines.';

CREATE TABLE kafka.pipelines (
    batch_id bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    last_error_at timestamp with time zone,
    checkpoints_kept integer DEFAULT 100 NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    last_error text,
    CONSTRAINT pipelines_batch_id_check CHECK ((batch_id >= 0)),
    CONSTRAINT pipelines_checkpoints_kept_check CHECK ((checkpoints_kept >= 1)),
    CONSTRAINT pipelines_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='200');

COMMENT ON TABLE kafka.pipelines IS 'Pipelines: jobs that read topics in numbered batches, each committed with its results, state and positions in one transaction.';

COMMENT ON COLUMN kafka.pipelines.batch_id IS 'The last batch that was committed; 0 before the first.';

COMMENT ON COLUMN kafka.pipelines.created_at IS 'When the pipeline was first seen.';

COMMENT ON COLUMN kafka.pipelines.updated_at IS 'When it last committed, or went back.';

COMMENT ON COLUMN kafka.pipelines.last_error_at IS 'When it last failed; null if never.';

COMMENT ON COLUMN kafka.pipelines.checkpoints_kept IS 'How many of its newest checkpoints are kept to go back to.';

COMMENT ON COLUMN kafka.pipelines.name IS 'Name of the pipeline; kafka.consumer_lag shows it as pipeline:<name>.';

COMMENT ON COLUMN kafka.pipelines.last_error IS 'Why it last failed; null if never.';

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
    o.committed_at,
    'group'::text AS kind
   FROM (((kafka.consumer_offsets o
     JOIN kafka.groups g USING (group_id))
     JOIN kafka.topics t USING (topic_id))
     JOIN kafka.partitions p ON (((p.topic_id = o.topic_id) AND (p.partition = o.partition))))
UNION ALL
 SELECT ('pipeline:'::text || o.pipeline) AS group_id,
    t.name AS topic,
    o.partition,
    o.next_offset AS committed_offset,
    p.log_start_offset,
    p.last_stable_offset,
    p.next_offset AS end_offset,
    GREATEST((p.next_offset - o.next_offset), (0)::bigint) AS lag,
    GREATEST((p.last_stable_offset - o.next_offset), (0)::bigint) AS stable_lag,
        CASE
            WHEN (l.last_error_at > l.updated_at) THEN 'Failed'::text
            ELSE 'Pipeline'::text
        END AS state,
    ('batch '::text || l.batch_id) AS metadata,
    NULL::integer AS leader_epoch,
    o.updated_at AS committed_at,
    'pipeline'::text AS kind
   FROM (((kafka.pipeline_positions o
     JOIN kafka.pipelines l ON ((l.name = o.pipeline)))
     JOIN kafka.topics t USING (topic_id))
     JOIN kafka.partitions p ON (((p.topic_id = o.topic_id) AND (p.partition = o.partition))));

COMMENT ON VIEW kafka.consumer_lag IS 'How far each group, and each pipeline, is behind in each partition it has a position in.';

COMMENT ON COLUMN kafka.consumer_lag.group_id IS 'The group, or pipeline:<name>.';

COMMENT ON COLUMN kafka.consumer_lag.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.consumer_lag.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.consumer_lag.committed_offset IS 'The next offset that will be read.';

COMMENT ON COLUMN kafka.consumer_lag.log_start_offset IS 'The first offset there is.';

COMMENT ON COLUMN kafka.consumer_lag.last_stable_offset IS 'The end as read_committed consumers see it.';

COMMENT ON COLUMN kafka.consumer_lag.end_offset IS 'The end of the log.';

COMMENT ON COLUMN kafka.consumer_lag.lag IS 'Offsets between the committed one and the end of the log.';

COMMENT ON COLUMN kafka.consumer_lag.stable_lag IS 'Offsets between the committed one and the last stable one.';

COMMENT ON COLUMN kafka.consumer_lag.state IS 'State of the group; of a pipeline: Pipeline, or Failed if it failed since its last commit.';

COMMENT ON COLUMN kafka.consumer_lag.metadata IS 'Text that the client stored with the offset; of a pipeline: its batch.';

COMMENT ON COLUMN kafka.consumer_lag.leader_epoch IS 'Leader epoch that was committed; null if none.';

COMMENT ON COLUMN kafka.consumer_lag.committed_at IS 'When the offset was committed.';

COMMENT ON COLUMN kafka.consumer_lag.kind IS 'group or pipeline.';

CREATE TABLE kafka.dead_letters (
    dead_letter_id bigint NOT NULL,
    source_offset bigint NOT NULL,
    dlq_offset bigint,
    redriven_offset bigint,
    first_delivered_at timestamp with time zone,
    last_delivered_at timestamp with time zone,
    died_at timestamp with time zone DEFAULT now() NOT NULL,
    redriven_at timestamp with time zone,
    source_partition integer NOT NULL,
    dlq_topic_id integer NOT NULL,
    dlq_partition integer,
    attempts integer NOT NULL,
    copies integer DEFAULT 1 NOT NULL,
    group_id text NOT NULL COLLATE pg_catalog."C",
    source_topic text NOT NULL COLLATE pg_catalog."C",
    tenant text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    idempotency_key text COLLATE pg_catalog."C",
    state text DEFAULT 'dead'::text NOT NULL,
    last_error text NOT NULL,
    CONSTRAINT dead_letters_state_check CHECK ((state = ANY (ARRAY['dead'::text, 'redriven'::text])))
);

COMMENT ON TABLE kafka.dead_letters IS 'What was given up, each a record of a topic dlq.<topic>. See `tablewire dlq`.';

COMMENT ON COLUMN kafka.dead_letters.dead_letter_id IS 'Its number.';

COMMENT ON COLUMN kafka.dead_letters.source_offset IS 'Offset of the record that was given up.';

COMMENT ON COLUMN kafka.dead_letters.dlq_offset IS 'Its offset in the dead-letter topic.';

COMMENT ON COLUMN kafka.dead_letters.redriven_offset IS 'Offset under which it went back to its topic.';

COMMENT ON COLUMN kafka.dead_letters.first_delivered_at IS 'When it was first delivered.';

COMMENT ON COLUMN kafka.dead_letters.last_delivered_at IS 'When it was last delivered.';

COMMENT ON COLUMN kafka.dead_letters.died_at IS 'When it was given up.';

COMMENT ON COLUMN kafka.dead_letters.redriven_at IS 'When it went back.';

COMMENT ON COLUMN kafka.dead_letters.source_partition IS 'Partition of the record that was given up.';

COMMENT ON COLUMN kafka.dead_letters.dlq_topic_id IS 'The dead-letter topic.';

COMMENT ON COLUMN kafka.dead_letters.dlq_partition IS 'Its partition there.';

COMMENT ON COLUMN kafka.dead_letters.attempts IS 'How often it was delivered.';

COMMENT ON COLUMN kafka.dead_letters.copies IS 'How many records with this idempotency key were given up; one of them is a dead letter.';

COMMENT ON COLUMN kafka.dead_letters.group_id IS 'The workers that gave it up.';

COMMENT ON COLUMN kafka.dead_letters.source_topic IS 'Name of the topic it came from.';

COMMENT ON COLUMN kafka.dead_letters.tenant IS 'The record''s tenant; empty if it has none.';

COMMENT ON COLUMN kafka.dead_letters.idempotency_key IS 'The record''s idempotency key; null if it has none.';

COMMENT ON COLUMN kafka.dead_letters.state IS 'dead, or redriven: written to its topic again.';

COMMENT ON COLUMN kafka.dead_letters.last_error IS 'Why the last delivery failed.';

ALTER TABLE kafka.dead_letters ALTER COLUMN dead_letter_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME kafka.dead_letters_dead_letter_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE kafka.deleted_topics (
    name text NOT NULL COLLATE pg_catalog."C",
    deleted_at timestamp with time zone DEFAULT now() NOT NULL
);

COMMENT ON TABLE kafka.deleted_topics IS 'Names that topics had not long ago: producers of such a topic number on if it is created anew.';

COMMENT ON COLUMN kafka.deleted_topics.name IS 'The name.';

COMMENT ON COLUMN kafka.deleted_topics.deleted_at IS 'When a topic of that name was last deleted.';

CREATE TABLE kafka.deliveries (
    "offset" bigint NOT NULL,
    available_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    leased_until timestamp with time zone,
    first_delivered_at timestamp with time zone,
    last_delivered_at timestamp with time zone,
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    group_id text NOT NULL COLLATE pg_catalog."C",
    state text NOT NULL,
    worker text,
    last_error text,
    CONSTRAINT deliveries_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT deliveries_state_check CHECK ((state = ANY (ARRAY['available'::text, 'acquired'::text, 'acknowledged'::text, 'archived'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.deliveries IS 'Records on their way to the workers of a group: those delivered and not settled, and those settled behind one that is not. See kafka.deliveries_by_age.';

COMMENT ON COLUMN kafka.deliveries."offset" IS 'The record''s offset.';

COMMENT ON COLUMN kafka.deliveries.available_at IS 'When it may be delivered (again).';

COMMENT ON COLUMN kafka.deliveries.leased_until IS 'Until when its worker may answer; null unless acquired.';

COMMENT ON COLUMN kafka.deliveries.first_delivered_at IS 'When it was first delivered; null if it was given back.';

COMMENT ON COLUMN kafka.deliveries.last_delivered_at IS 'When it was last delivered.';

COMMENT ON COLUMN kafka.deliveries.topic_id IS 'The topic.';

COMMENT ON COLUMN kafka.deliveries.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.deliveries.attempts IS 'How often it was delivered. Whoever answers must name it: an older delivery is answered in vain.';

COMMENT ON COLUMN kafka.deliveries.group_id IS 'The workers'' group.';

COMMENT ON COLUMN kafka.deliveries.state IS 'As in KIP-932: available, acquired, acknowledged or archived (given up).';

COMMENT ON COLUMN kafka.deliveries.worker IS 'Who has it; null unless acquired.';

COMMENT ON COLUMN kafka.deliveries.last_error IS 'Why the delivery before failed; ack_timeout if nobody answered.';

CREATE VIEW kafka.deliveries_by_age AS
 SELECT d.group_id,
    t.name AS topic,
    d.partition,
    d."offset",
    d.state,
    d.attempts,
    d.last_error,
    d.worker,
    d.leased_until,
        CASE
            WHEN (d.state = 'available'::text) THEN d.available_at
            ELSE NULL::timestamp with time zone
        END AS next_attempt_at,
    d.first_delivered_at,
    d.last_delivered_at,
    (now() - d.first_delivered_at) AS age
   FROM (kafka.deliveries d
     JOIN kafka.topics t USING (topic_id))
  WHERE (d.state = ANY (ARRAY['available'::text, 'acquired'::text]))
  ORDER BY d.first_delivered_at;

COMMENT ON VIEW kafka.deliveries_by_age IS 'Unsettled deliveries, the oldest first: attempts, last error, who has it until when, or when it is tried again.';

COMMENT ON COLUMN kafka.deliveries_by_age.group_id IS 'The workers'' group.';

COMMENT ON COLUMN kafka.deliveries_by_age.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.deliveries_by_age.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.deliveries_by_age."offset" IS 'The record''s offset.';

COMMENT ON COLUMN kafka.deliveries_by_age.state IS 'available or acquired.';

COMMENT ON COLUMN kafka.deliveries_by_age.attempts IS 'How often it was delivered.';

COMMENT ON COLUMN kafka.deliveries_by_age.last_error IS 'Why the delivery before failed.';

COMMENT ON COLUMN kafka.deliveries_by_age.worker IS 'Who has it.';

COMMENT ON COLUMN kafka.deliveries_by_age.leased_until IS 'Until when its worker may answer.';

COMMENT ON COLUMN kafka.deliveries_by_age.next_attempt_at IS 'When it may be delivered again.';

COMMENT ON COLUMN kafka.deliveries_by_age.first_delivered_at IS 'When it was first delivered.';

COMMENT ON COLUMN kafka.deliveries_by_age.last_delivered_at IS 'When it was last delivered.';

COMMENT ON COLUMN kafka.deliveries_by_age.age IS 'How long ago it was first delivered.';

CREATE TABLE kafka.delivery_counters (
    slot integer NOT NULL,
    retried bigint DEFAULT 0 NOT NULL,
    timed_out bigint DEFAULT 0 NOT NULL,
    dead_lettered bigint DEFAULT 0 NOT NULL,
    redriven bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='40', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='200');

COMMENT ON TABLE kafka.delivery_counters IS 'Counts behind kafka.delivery_totals, in slots that do not wait for each other.';

COMMENT ON COLUMN kafka.delivery_counters.slot IS '0 to 15, by database session.';

COMMENT ON COLUMN kafka.delivery_counters.retried IS 'Deliveries that failed and are to be repeated, those below included.';

COMMENT ON COLUMN kafka.delivery_counters.timed_out IS 'Deliveries that nobody answered in time.';

COMMENT ON COLUMN kafka.delivery_counters.dead_lettered IS 'Records given up.';

COMMENT ON COLUMN kafka.delivery_counters.redriven IS 'Dead letters written back to their topic.';

CREATE TABLE kafka.delivery_partitions (
    start_offset bigint NOT NULL,
    end_offset bigint NOT NULL,
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    group_id text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT delivery_partitions_check CHECK ((start_offset <= end_offset))
)
WITH (fillfactor='40', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.delivery_partitions IS 'How far the workers of a group are in a partition. Held by whoever takes or settles deliveries there.';

COMMENT ON COLUMN kafka.delivery_partitions.start_offset IS 'The first unsettled offset: the group''s committed offset.';

COMMENT ON COLUMN kafka.delivery_partitions.end_offset IS 'The first offset that was never delivered.';

COMMENT ON COLUMN kafka.delivery_partitions.topic_id IS 'The topic.';

COMMENT ON COLUMN kafka.delivery_partitions.partition IS 'Partition number.';

COMMENT ON COLUMN kafka.delivery_partitions.group_id IS 'The workers'' group.';

CREATE VIEW kafka.delivery_stats AS
 SELECT p.group_id,
    t.name AS topic,
    (sum((p.end_offset - p.start_offset)))::bigint AS offsets_open,
    ( SELECT count(*) AS count
           FROM kafka.deliveries d
          WHERE ((d.group_id = p.group_id) AND (d.topic_id = p.topic_id) AND (d.state = 'acquired'::text))) AS in_flight,
    ( SELECT count(*) AS count
           FROM kafka.deliveries d
          WHERE ((d.group_id = p.group_id) AND (d.topic_id = p.topic_id) AND (d.state = 'available'::text))) AS waiting,
    ( SELECT (now() - min(d.first_delivered_at))
           FROM kafka.deliveries d
          WHERE ((d.group_id = p.group_id) AND (d.topic_id = p.topic_id) AND (d.state = ANY (ARRAY['available'::text, 'acquired'::text])))) AS oldest_age,
    ( SELECT count(*) AS count
           FROM kafka.dead_letters l
          WHERE ((l.group_id = p.group_id) AND (l.source_topic = t.name) AND (l.state = 'dead'::text))) AS dead_letters
   FROM (kafka.delivery_partitions p
     JOIN kafka.topics t USING (topic_id))
  GROUP BY p.group_id, p.topic_id, t.name;

COMMENT ON VIEW kafka.delivery_stats IS 'Workers'' groups by topic: what they have in hand, what waits for another attempt, what was given up.';

COMMENT ON COLUMN kafka.delivery_stats.group_id IS 'The workers'' group.';

COMMENT ON COLUMN kafka.delivery_stats.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.delivery_stats.offsets_open IS 'Offsets between the first unsettled and the first undelivered one.';

COMMENT ON COLUMN kafka.delivery_stats.in_flight IS 'Records that workers have now.';

COMMENT ON COLUMN kafka.delivery_stats.waiting IS 'Records that wait for a delivery.';

COMMENT ON COLUMN kafka.delivery_stats.oldest_age IS 'Age of the oldest unsettled delivery.';

COMMENT ON COLUMN kafka.delivery_stats.dead_letters IS 'Dead letters that were not redriven.';

CREATE VIEW kafka.delivery_totals AS
 SELECT (sum(retried))::bigint AS retried,
    (sum(timed_out))::bigint AS timed_out,
    (sum(dead_lettered))::bigint AS dead_lettered,
    (sum(redriven))::bigint AS redriven
   FROM kafka.delivery_counters c;

COMMENT ON VIEW kafka.delivery_totals IS 'How many deliveries were repeated, timed out, given up or redriven.';

COMMENT ON COLUMN kafka.delivery_totals.retried IS 'Deliveries that failed and are to be repeated, since the schema was made.';

COMMENT ON COLUMN kafka.delivery_totals.timed_out IS 'Deliveries that nobody answered in time.';

COMMENT ON COLUMN kafka.delivery_totals.dead_lettered IS 'Records given up.';

COMMENT ON COLUMN kafka.delivery_totals.redriven IS 'Dead letters written back to their topic.';

CREATE TABLE kafka.idempotency_keys (
    first_offset bigint,
    producer_id bigint,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    lease_until timestamp with time zone,
    expires_at timestamp with time zone NOT NULL,
    topic_id integer NOT NULL,
    first_partition integer,
    attempts integer DEFAULT 1 NOT NULL,
    status text NOT NULL,
    group_id text NOT NULL COLLATE pg_catalog."C",
    tenant text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    owner text,
    last_error text,
    result_reference text,
    CONSTRAINT idempotency_keys_holder CHECK (
CASE
    WHEN (status = 'PENDING'::text) THEN ((producer_id IS NULL) = (lease_until IS NOT NULL))
    ELSE ((producer_id IS NULL) AND (lease_until IS NULL))
END),
    CONSTRAINT idempotency_keys_size CHECK ((((octet_length(key) >= 1) AND (octet_length(key) <= 1024)) AND (octet_length(tenant) <= 256) AND (octet_length(group_id) <= 512))),
    CONSTRAINT idempotency_keys_status_check CHECK ((status = ANY (ARRAY['PENDING'::text, 'COMMITTED'::text, 'FAILED'::text])))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE kafka.idempotency_keys IS 'Business keys by topic, group and tenant: one row however often a key is sent or delivered.';

COMMENT ON COLUMN kafka.idempotency_keys.first_offset IS 'Offset of the record that was enqueued for the key; while FAILED, of the last one that was tried.';

COMMENT ON COLUMN kafka.idempotency_keys.producer_id IS 'Whose open transaction holds the key; null if none does.';

COMMENT ON COLUMN kafka.idempotency_keys.created_at IS 'When the key was first seen.';

COMMENT ON COLUMN kafka.idempotency_keys.updated_at IS 'When the row last changed.';

COMMENT ON COLUMN kafka.idempotency_keys.lease_until IS 'Until when the owner of a PENDING key may work undisturbed.';

COMMENT ON COLUMN kafka.idempotency_keys.expires_at IS 'From when on the key is forgotten, whatever its status; a held one when it is let go.';

COMMENT ON COLUMN kafka.idempotency_keys.topic_id IS 'The topic.';

COMMENT ON COLUMN kafka.idempotency_keys.first_partition IS 'Partition of that record.';

COMMENT ON COLUMN kafka.idempotency_keys.attempts IS 'How often it was begun.';

COMMENT ON COLUMN kafka.idempotency_keys.status IS 'PENDING: begun; COMMITTED: done; FAILED: may be tried again.';

COMMENT ON COLUMN kafka.idempotency_keys.group_id IS 'The consumer group that works on it; empty: the topic''s producers.';

COMMENT ON COLUMN kafka.idempotency_keys.tenant IS 'The tenant; empty if there is none.';

COMMENT ON COLUMN kafka.idempotency_keys.key IS 'The key, unique within topic, group and tenant.';

COMMENT ON COLUMN kafka.idempotency_keys.owner IS 'Who began it last, and alone may mark it; null if a producer did.';

COMMENT ON COLUMN kafka.idempotency_keys.last_error IS 'Why the last attempt that failed did.';

COMMENT ON COLUMN kafka.idempotency_keys.result_reference IS 'What the worker left to find its result by.';

CREATE VIEW kafka.failing_keys AS
 SELECT t.name AS topic,
    k.group_id,
    k.tenant,
    k.key,
    k.attempts,
    k.last_error,
    k.owner,
    k.created_at,
    k.updated_at AS failed_at,
    k.expires_at
   FROM (kafka.idempotency_keys k
     JOIN kafka.topics t USING (topic_id))
  WHERE ((k.status = 'FAILED'::text) AND (k.status <> 'COMMITTED'::text));

COMMENT ON VIEW kafka.failing_keys IS 'Keys whose last attempt failed and that nobody has begun again.';

COMMENT ON COLUMN kafka.failing_keys.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.failing_keys.group_id IS 'The consumer group; empty: the topic''s producers.';

COMMENT ON COLUMN kafka.failing_keys.tenant IS 'The tenant; empty if there is none.';

COMMENT ON COLUMN kafka.failing_keys.key IS 'The key.';

COMMENT ON COLUMN kafka.failing_keys.attempts IS 'How often it was begun.';

COMMENT ON COLUMN kafka.failing_keys.last_error IS 'Why the last attempt failed.';

COMMENT ON COLUMN kafka.failing_keys.owner IS 'Who tried last; null if a producer did.';

COMMENT ON COLUMN kafka.failing_keys.created_at IS 'When the key was first seen.';

COMMENT ON COLUMN kafka.failing_keys.failed_at IS 'When the last attempt failed.';

COMMENT ON COLUMN kafka.failing_keys.expires_at IS 'From when on it is forgotten.';

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

CREATE VIEW kafka.keys_in_flight AS
 SELECT t.name AS topic,
    k.group_id,
    k.tenant,
    k.key,
    k.attempts,
    k.owner,
    k.lease_until,
    (k.lease_until <= clock_timestamp()) AS is_lease_over,
    k.producer_id,
    ( SELECT x.transactional_id
           FROM kafka.transactions x
          WHERE (x.producer_id = k.producer_id)) AS transactional_id,
    k.updated_at AS begun_at,
    (clock_timestamp() - k.updated_at) AS age,
    k.last_error
   FROM (kafka.idempotency_keys k
     JOIN kafka.topics t USING (topic_id))
  WHERE ((k.status = 'PENDING'::text) AND (k.status <> 'COMMITTED'::text));

COMMENT ON VIEW kafka.keys_in_flight IS 'Keys that were begun and neither done nor failed yet, and who holds them.';

COMMENT ON COLUMN kafka.keys_in_flight.topic IS 'The topic''s name.';

COMMENT ON COLUMN kafka.keys_in_flight.group_id IS 'The consumer group; empty: the topic''s producers.';

COMMENT ON COLUMN kafka.keys_in_flight.tenant IS 'The tenant; empty if there is none.';

COMMENT ON COLUMN kafka.keys_in_flight.key IS 'The key.';

COMMENT ON COLUMN kafka.keys_in_flight.attempts IS 'How often it was begun.';

COMMENT ON COLUMN kafka.keys_in_flight.owner IS 'Who holds it; null if a transaction does.';

COMMENT ON COLUMN kafka.keys_in_flight.lease_until IS 'Until when; null if a transaction holds it.';

COMMENT ON COLUMN kafka.keys_in_flight.is_lease_over IS 'Whether somebody else may begin it by now.';

COMMENT ON COLUMN kafka.keys_in_flight.producer_id IS 'Whose open transaction holds it.';

COMMENT ON COLUMN kafka.keys_in_flight.transactional_id IS 'The transactional id of that producer.';

COMMENT ON COLUMN kafka.keys_in_flight.begun_at IS 'When it was begun last, or its lease extended.';

COMMENT ON COLUMN kafka.keys_in_flight.age IS 'How long ago that was.';

COMMENT ON COLUMN kafka.keys_in_flight.last_error IS 'Why the attempt before failed.';

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

CREATE TABLE kafka.pipeline_files (
    batch_id bigint NOT NULL,
    size_bytes bigint NOT NULL,
    committed_at timestamp with time zone DEFAULT now() NOT NULL,
    pipeline text NOT NULL COLLATE pg_catalog."C",
    output text NOT NULL COLLATE pg_catalog."C",
    path text NOT NULL COLLATE pg_catalog."C"
);

COMMENT ON TABLE kafka.pipeline_files IS 'Manifest of the files that pipelines wrote, as they committed it. Read kafka.output_files.';

COMMENT ON COLUMN kafka.pipeline_files.batch_id IS 'The batch whose rows it holds.';

COMMENT ON COLUMN kafka.pipeline_files.size_bytes IS 'Size of the file.';

COMMENT ON COLUMN kafka.pipeline_files.committed_at IS 'When it began to count.';

COMMENT ON COLUMN kafka.pipeline_files.pipeline IS 'The pipeline, see kafka.pipelines.';

COMMENT ON COLUMN kafka.pipeline_files.output IS 'Which of the job''s outputs.';

COMMENT ON COLUMN kafka.pipeline_files.path IS 'Where the file is, as Spark names it.';

CREATE VIEW kafka.output_files AS
 SELECT f.pipeline,
    f.output,
    f.batch_id,
    f.path,
    f.size_bytes,
    f.committed_at
   FROM (kafka.pipeline_files f
     JOIN kafka.pipelines p ON ((p.name = f.pipeline)))
  WHERE (f.batch_id <= p.batch_id);

COMMENT ON VIEW kafka.output_files IS 'The files that count: written by batches that were committed and not undone since.';

COMMENT ON COLUMN kafka.output_files.pipeline IS 'The pipeline.';

COMMENT ON COLUMN kafka.output_files.output IS 'Which of the job''s outputs.';

COMMENT ON COLUMN kafka.output_files.batch_id IS 'The batch whose rows it holds.';

COMMENT ON COLUMN kafka.output_files.path IS 'Where the file is, as Spark names it.';

COMMENT ON COLUMN kafka.output_files.size_bytes IS 'Size of the file.';

COMMENT ON COLUMN kafka.output_files.committed_at IS 'When it began to count.';

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

CREATE TABLE kafka.pipeline_checkpoints (
    batch_id bigint NOT NULL,
    rows bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    pipeline text NOT NULL COLLATE pg_catalog."C",
    positions jsonb DEFAULT '[]'::jsonb NOT NULL,
    seals jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT pipeline_checkpoints_batch_id_check CHECK ((batch_id >= 0))
);

COMMENT ON TABLE kafka.pipeline_checkpoints IS 'The newest commits of each pipeline: kafka.pipeline_go_back returns to one.';

COMMENT ON COLUMN kafka.pipeline_checkpoints.batch_id IS 'The batch that was committed; 0 is the empty start.';

COMMENT ON COLUMN kafka.pipeline_checkpoints.rows IS 'How many input rows the batch had.';

COMMENT ON COLUMN kafka.pipeline_checkpoints.created_at IS 'When it was committed.';

COMMENT ON COLUMN kafka.pipeline_checkpoints.pipeline IS 'The pipeline, see kafka.pipelines.';

COMMENT ON COLUMN kafka.pipeline_checkpoints.positions IS 'Its positions after the batch: topic, topic_id, partition and next_offset of each partition.';

COMMENT ON COLUMN kafka.pipeline_checkpoints.seals IS 'How far its namespaces were sealed after the batch: epoch and round by namespace.';

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
    batches text NOT NULL
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

COMMENT ON COLUMN kafka.producer_sequences.batches IS 'The newest five batches, oldest first and separated by spaces, of each offset:records:timestamp: offset of the first record (what a retry is answered), how many, and the largest timestamp in milliseconds. Their sequences end with last_sequence.';

CREATE VIEW kafka.producer_state AS
 SELECT s.producer_id,
    p.client_id,
    p.transactional_id,
    t.name AS topic,
    s.partition_id AS partition,
    s.producer_epoch,
    s.last_sequence,
    ( SELECT jsonb_agg(jsonb_build_object('first_sequence', (((s.last_sequence - b.from_first) + 1) & (2147483647)::bigint), 'last_sequence', (((s.last_sequence - b.from_first) + b.record_count) & (2147483647)::bigint), 'base_offset', b.base_offset, 'timestamp', ('1970-01-01 00:00:00+00'::timestamp with time zone + ((b.timestamp_ms)::double precision * '00:00:00.001'::interval))) ORDER BY b.place) AS jsonb_agg
           FROM ( SELECT n.place,
                    (split_part(n.batch, ':'::text, 1))::bigint AS base_offset,
                    (split_part(n.batch, ':'::text, 2))::bigint AS record_count,
                    (split_part(n.batch, ':'::text, 3))::bigint AS timestamp_ms,
                    (sum((split_part(n.batch, ':'::text, 2))::bigint) OVER (ORDER BY n.place DESC))::bigint AS from_first
                   FROM string_to_table(s.batches, ' '::text) WITH ORDINALITY n(batch, place)) b) AS batches,
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

CREATE TABLE kafka.state (
    epoch bigint NOT NULL,
    round bigint NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    namespace text NOT NULL COLLATE pg_catalog."C",
    key bytea NOT NULL,
    value bytea,
    CONSTRAINT state_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT state_round_check CHECK ((round >= 0))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.05');

COMMENT ON TABLE kafka.state IS 'Versioned values by namespace and key. Write with kafka.state_put, never directly.';

COMMENT ON COLUMN kafka.state.epoch IS 'First part of the version; 0 where offsets are versions.';

COMMENT ON COLUMN kafka.state.round IS 'Second part of the version: a round within the epoch, or a partition offset.';

COMMENT ON COLUMN kafka.state.updated_at IS 'When the row last changed.';

COMMENT ON COLUMN kafka.state.namespace IS 'The namespace, see kafka.state_namespaces.';

COMMENT ON COLUMN kafka.state.key IS 'The key, at most 2048 bytes.';

COMMENT ON COLUMN kafka.state.value IS 'The value; null if the key was deleted at this version. JSON reads as kafka.state_json(value).';

CREATE TABLE kafka.state_buffer (
    epoch bigint NOT NULL,
    round bigint NOT NULL,
    added_in bigint DEFAULT 0 NOT NULL,
    removed_in bigint,
    namespace text NOT NULL COLLATE pg_catalog."C",
    key bytea NOT NULL,
    value bytea,
    CONSTRAINT state_buffer_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT state_buffer_round_check CHECK ((round >= 0))
);

COMMENT ON TABLE kafka.state_buffer IS 'Versions of sealed namespaces that wait to be sealed, in whatever order they came.';

COMMENT ON COLUMN kafka.state_buffer.epoch IS 'First part of the version.';

COMMENT ON COLUMN kafka.state_buffer.round IS 'Second part of the version.';

COMMENT ON COLUMN kafka.state_buffer.added_in IS 'The batch of the namespace''s pipeline that brought it; 0 without one.';

COMMENT ON COLUMN kafka.state_buffer.removed_in IS 'The batch that applied it, kept to go back to; null while it waits.';

COMMENT ON COLUMN kafka.state_buffer.namespace IS 'The namespace.';

COMMENT ON COLUMN kafka.state_buffer.key IS 'The key.';

COMMENT ON COLUMN kafka.state_buffer.value IS 'The value; null deletes the key.';

CREATE TABLE kafka.state_history (
    batch_id bigint NOT NULL,
    epoch bigint,
    round bigint,
    namespace text NOT NULL COLLATE pg_catalog."C",
    key bytea NOT NULL,
    value bytea
);

COMMENT ON TABLE kafka.state_history IS 'What a key was before a batch changed it, for as long as a checkpoint before that batch is kept.';

COMMENT ON COLUMN kafka.state_history.batch_id IS 'The batch of the namespace''s pipeline that changed the key.';

COMMENT ON COLUMN kafka.state_history.epoch IS 'First part of the version before; null if the key was not there.';

COMMENT ON COLUMN kafka.state_history.round IS 'Second part of the version before.';

COMMENT ON COLUMN kafka.state_history.namespace IS 'The namespace.';

COMMENT ON COLUMN kafka.state_history.key IS 'The key.';

COMMENT ON COLUMN kafka.state_history.value IS 'The value before; null if it was deleted or not there.';

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

ALTER TABLE ONLY kafka.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (dead_letter_id);

ALTER TABLE ONLY kafka.deleted_topics
    ADD CONSTRAINT deleted_topics_pkey PRIMARY KEY (name);

ALTER TABLE ONLY kafka.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (group_id, topic_id, partition, "offset");

ALTER TABLE ONLY kafka.delivery_counters
    ADD CONSTRAINT delivery_counters_pkey PRIMARY KEY (slot);

ALTER TABLE ONLY kafka.delivery_partitions
    ADD CONSTRAINT delivery_partitions_pkey PRIMARY KEY (group_id, topic_id, partition);

ALTER TABLE ONLY kafka.group_members
    ADD CONSTRAINT group_members_pkey PRIMARY KEY (group_id, member_id);

ALTER TABLE ONLY kafka.groups
    ADD CONSTRAINT groups_pkey PRIMARY KEY (group_id);

ALTER TABLE ONLY kafka.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (topic_id, group_id, tenant, key);

ALTER TABLE ONLY kafka.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (topic_id, partition, "offset");

ALTER TABLE ONLY kafka.partitions
    ADD CONSTRAINT partitions_pkey PRIMARY KEY (topic_id, partition);

ALTER TABLE ONLY kafka.pipeline_checkpoints
    ADD CONSTRAINT pipeline_checkpoints_pkey PRIMARY KEY (pipeline, batch_id);

ALTER TABLE ONLY kafka.pipeline_files
    ADD CONSTRAINT pipeline_files_pkey PRIMARY KEY (pipeline, output, batch_id, path);

ALTER TABLE ONLY kafka.pipeline_positions
    ADD CONSTRAINT pipeline_positions_pkey PRIMARY KEY (pipeline, topic_id, partition);

ALTER TABLE ONLY kafka.pipelines
    ADD CONSTRAINT pipelines_pkey PRIMARY KEY (name);

ALTER TABLE ONLY kafka.producer_ids
    ADD CONSTRAINT producer_ids_pkey PRIMARY KEY (producer_id);

ALTER TABLE ONLY kafka.producer_sequences
    ADD CONSTRAINT producer_sequences_pkey PRIMARY KEY (producer_id, topic_id, partition_id);

ALTER TABLE ONLY kafka.state_buffer
    ADD CONSTRAINT state_buffer_pkey PRIMARY KEY (namespace, key, epoch, round, added_in);

ALTER TABLE ONLY kafka.state_history
    ADD CONSTRAINT state_history_pkey PRIMARY KEY (namespace, batch_id, key);

ALTER TABLE ONLY kafka.state_namespaces
    ADD CONSTRAINT state_namespaces_pkey PRIMARY KEY (namespace);

ALTER TABLE ONLY kafka.state
    ADD CONSTRAINT state_pkey PRIMARY KEY (namespace, key);

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

CREATE UNIQUE INDEX dead_letters_identity ON kafka.dead_letters USING btree (group_id, source_topic, tenant, idempotency_key) WHERE ((state = 'dead'::text) AND (idempotency_key IS NOT NULL));

CREATE INDEX dead_letters_place ON kafka.dead_letters USING btree (dlq_topic_id, dlq_partition, dlq_offset);

CREATE INDEX deliveries_unsettled ON kafka.deliveries USING btree (group_id, topic_id, partition, "offset") WHERE (state = ANY (ARRAY['available'::text, 'acquired'::text]));

CREATE INDEX idempotency_keys_expiry ON kafka.idempotency_keys USING btree (expires_at);

CREATE INDEX idempotency_keys_unsettled ON kafka.idempotency_keys USING btree (producer_id) WHERE (status <> 'COMMITTED'::text);

CREATE INDEX messages_markers ON ONLY kafka.messages USING btree (topic_id, partition, producer_id, "offset") WHERE (control_type IS NOT NULL);

CREATE INDEX messages_timestamp ON ONLY kafka.messages USING brin ("timestamp") WITH (autosummarize='on');

CREATE INDEX pipeline_positions_partition ON kafka.pipeline_positions USING btree (topic_id, partition);

CREATE UNIQUE INDEX producer_ids_transactional_id ON kafka.producer_ids USING btree (transactional_id) WHERE (transactional_id IS NOT NULL);

CREATE INDEX producer_sequences_partition ON kafka.producer_sequences USING btree (topic_id, partition_id, producer_id);

CREATE INDEX state_buffer_removed ON kafka.state_buffer USING btree (namespace, removed_in) WHERE (removed_in IS NOT NULL);

CREATE UNIQUE INDEX state_buffer_waiting ON kafka.state_buffer USING btree (namespace, epoch, round, key) WHERE (removed_in IS NULL);

CREATE INDEX state_namespaces_pipeline ON kafka.state_namespaces USING btree (pipeline) WHERE (pipeline IS NOT NULL);

CREATE INDEX transaction_offsets_group ON kafka.transaction_offsets USING btree (group_id, topic_id, partition);

CREATE INDEX transaction_partitions_partition ON kafka.transaction_partitions USING btree (topic_id, partition, producer_id);

CREATE INDEX transactions_open ON kafka.transactions USING btree (producer_id) WHERE (state = 'Ongoing'::text);

CREATE TRIGGER transactions_settle_keys AFTER UPDATE OF state ON kafka.transactions FOR EACH ROW WHEN (((old.state = 'Ongoing'::text) AND (new.state <> 'Ongoing'::text))) EXECUTE FUNCTION kafka.settle_keys();

ALTER TABLE ONLY kafka.aborted_transactions
    ADD CONSTRAINT aborted_transactions_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.consumer_offsets
    ADD CONSTRAINT consumer_offsets_group_id_fkey FOREIGN KEY (group_id) REFERENCES kafka.groups(group_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.consumer_offsets
    ADD CONSTRAINT consumer_offsets_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.dead_letters
    ADD CONSTRAINT dead_letters_dlq_topic_id_fkey FOREIGN KEY (dlq_topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.deliveries
    ADD CONSTRAINT deliveries_group_id_topic_id_partition_fkey FOREIGN KEY (group_id, topic_id, partition) REFERENCES kafka.delivery_partitions(group_id, topic_id, partition) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.delivery_partitions
    ADD CONSTRAINT delivery_partitions_group_id_fkey FOREIGN KEY (group_id) REFERENCES kafka.groups(group_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.delivery_partitions
    ADD CONSTRAINT delivery_partitions_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.group_members
    ADD CONSTRAINT group_members_group_id_fkey FOREIGN KEY (group_id) REFERENCES kafka.groups(group_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.partitions
    ADD CONSTRAINT partitions_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.pipeline_checkpoints
    ADD CONSTRAINT pipeline_checkpoints_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES kafka.pipelines(name) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.pipeline_files
    ADD CONSTRAINT pipeline_files_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES kafka.pipelines(name) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.pipeline_positions
    ADD CONSTRAINT pipeline_positions_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES kafka.pipelines(name) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.pipeline_positions
    ADD CONSTRAINT pipeline_positions_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.producer_sequences
    ADD CONSTRAINT producer_sequences_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.state_namespaces
    ADD CONSTRAINT state_namespaces_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES kafka.pipelines(name);

ALTER TABLE ONLY kafka.topic_configs
    ADD CONSTRAINT topic_configs_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.transaction_offsets
    ADD CONSTRAINT transaction_offsets_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;

ALTER TABLE ONLY kafka.transaction_partitions
    ADD CONSTRAINT transaction_partitions_topic_id_fkey FOREIGN KEY (topic_id) REFERENCES kafka.topics(topic_id) ON DELETE CASCADE;
