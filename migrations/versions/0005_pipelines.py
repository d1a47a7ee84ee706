"""Pipelines: how far each has read, checkpoints to go back to, and versioned state with its history.

Locks: share row exclusive on kafka.topics for an instant (a foreign key points at it), access exclusive on
kafka.consumer_lag for an instant (the view is replaced); else new objects.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE kafka.pipelines (
    batch_id bigint NOT NULL DEFAULT 0 CHECK (batch_id >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    last_error_at timestamptz,
    checkpoints_kept integer NOT NULL DEFAULT 100 CHECK (checkpoints_kept >= 1),
    name text COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 200),
    last_error text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

CREATE TABLE kafka.pipeline_positions (
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    updated_at timestamptz NOT NULL DEFAULT now(),
    topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition integer NOT NULL CHECK (partition >= 0),
    pipeline text COLLATE "C" NOT NULL REFERENCES kafka.pipelines ON DELETE CASCADE,
    PRIMARY KEY (pipeline, topic_id, partition)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
CREATE INDEX pipeline_positions_partition ON kafka.pipeline_positions (topic_id, partition);

CREATE TABLE kafka.pipeline_checkpoints (
    batch_id bigint NOT NULL CHECK (batch_id >= 0),
    rows bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    pipeline text COLLATE "C" NOT NULL REFERENCES kafka.pipelines ON DELETE CASCADE,
    positions jsonb NOT NULL DEFAULT '[]',
    seals jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (pipeline, batch_id)
);

CREATE TABLE kafka.state_namespaces (
    sealed_epoch bigint,
    sealed_round bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    namespace text COLLATE "C" PRIMARY KEY CHECK (octet_length(namespace) BETWEEN 1 AND 200),
    ordering text NOT NULL DEFAULT 'latest' CHECK (ordering IN ('latest', 'sealed')),
    pipeline text COLLATE "C" REFERENCES kafka.pipelines,
    CHECK ((sealed_epoch IS NULL) = (sealed_round IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
CREATE INDEX state_namespaces_pipeline ON kafka.state_namespaces (pipeline) WHERE pipeline IS NOT NULL;

-- No foreign key to the namespace: it would be checked for every row, and only functions below write here.
CREATE TABLE kafka.state (
    epoch bigint NOT NULL CHECK (epoch >= 0),
    round bigint NOT NULL CHECK (round >= 0),
    updated_at timestamptz NOT NULL DEFAULT now(),
    namespace text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    value bytea,
    PRIMARY KEY (namespace, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE kafka.state_history (
    batch_id bigint NOT NULL,
    epoch bigint,
    round bigint,
    namespace text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    value bytea,
    PRIMARY KEY (namespace, batch_id, key)
);

CREATE TABLE kafka.state_buffer (
    epoch bigint NOT NULL CHECK (epoch >= 0),
    round bigint NOT NULL CHECK (round >= 0),
    added_in bigint NOT NULL DEFAULT 0,
    removed_in bigint,
    namespace text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    value bytea,
    PRIMARY KEY (namespace, key, epoch, round, added_in)
);
CREATE UNIQUE INDEX state_buffer_waiting
    ON kafka.state_buffer (namespace, epoch, round, key) WHERE removed_in IS NULL;
CREATE INDEX state_buffer_removed ON kafka.state_buffer (namespace, removed_in) WHERE removed_in IS NOT NULL;
"""

NAMESPACES = """
CREATE FUNCTION kafka.state_create(namespace text, ordering text DEFAULT 'latest', pipeline text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

-- The lock that every change of a namespace takes first: shared for single puts, alone for everything else.
CREATE FUNCTION kafka.state_lock(namespace text, alone boolean) RETURNS kafka.state_namespaces
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

-- Changes belong to the batch that its pipeline commits next; without a pipeline nobody goes back.
CREATE FUNCTION kafka.state_batch(pipeline text) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $function$
    SELECT p.batch_id + 1 FROM kafka.pipelines p WHERE p.name = state_batch.pipeline
$function$;

CREATE FUNCTION kafka.state_drop(namespace text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
BEGIN
    PERFORM kafka.state_lock(state_drop.namespace, true);
    DELETE FROM kafka.state s WHERE s.namespace = state_drop.namespace;
    DELETE FROM kafka.state_history h WHERE h.namespace = state_drop.namespace;
    DELETE FROM kafka.state_buffer b WHERE b.namespace = state_drop.namespace;
    DELETE FROM kafka.state_namespaces n WHERE n.namespace = state_drop.namespace;
END
$function$;
"""

PUTS = """
CREATE FUNCTION kafka.state_check(key bytea, value bytea, epoch bigint, round bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.state_put(namespace text, key bytea, value bytea, epoch bigint, round bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.state_put(namespace text, key bytea, value bytea, version bigint) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT kafka.state_put(namespace, key, value, 0, version)
$function$;

CREATE FUNCTION kafka.state_delete(namespace text, key bytea, epoch bigint, round bigint) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT kafka.state_put(namespace, key, NULL, epoch, round)
$function$;

CREATE FUNCTION kafka.state_delete(namespace text, key bytea, version bigint) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT kafka.state_put(namespace, key, NULL, 0, version)
$function$;

CREATE FUNCTION kafka.state_get(namespace text, key bytea) RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM kafka.state_namespaces n WHERE n.namespace = state_get.namespace) THEN
        RAISE EXCEPTION 'no namespace %', coalesce(state_get.namespace, 'null')
            USING ERRCODE = 'TWS01', HINT = 'kafka.state_create makes one; see kafka.state_namespaces';
    END IF;
    RETURN (SELECT s.value FROM kafka.state s WHERE s.namespace = state_get.namespace AND s.key = state_get.key);
END
$function$;

CREATE FUNCTION kafka.state_json(value bytea) RETURNS jsonb
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $function$
    SELECT convert_from(value, 'UTF8')::jsonb
$function$;
"""

# One statement judges all puts and writes what they change. Nobody else changes the namespace meanwhile.
BULK = """
CREATE FUNCTION kafka.state_apply_from(
    namespace text, source text, keys bytea[], contents bytea[], epochs bigint[], rounds bigint[]
) RETURNS TABLE (outcome text, puts bigint, first_key bytea, first_epoch bigint, first_round bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.state_put_all(
    namespace text, keys bytea[], contents bytea[], epochs bigint[], rounds bigint[]
) RETURNS TABLE (outcome text, puts bigint, first_key bytea, first_epoch bigint, first_round bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
BEGIN
    IF cardinality(keys) IS DISTINCT FROM cardinality(contents) OR cardinality(keys) IS DISTINCT FROM
            cardinality(epochs) OR cardinality(keys) IS DISTINCT FROM cardinality(rounds) THEN
        RAISE EXCEPTION 'the arrays of keys, contents, epochs and rounds differ in length' USING ERRCODE = '22023';
    END IF;
    RETURN QUERY SELECT * FROM kafka.state_apply_from(
        state_put_all.namespace, 'unnest($1, $2, $3, $4)', keys, contents, epochs, rounds);
END
$function$;

CREATE FUNCTION kafka.state_apply(namespace text, staging regclass)
RETURNS TABLE (outcome text, puts bigint, first_key bytea, first_epoch bigint, first_round bigint)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT * FROM kafka.state_apply_from(
        namespace, format('(SELECT key, value, epoch, round FROM %s)', staging), NULL, NULL, NULL, NULL)
$function$;

CREATE FUNCTION kafka.state_seal(namespace text, epoch bigint, round bigint)
RETURNS TABLE (key bytea, applied_epoch bigint, applied_round bigint, value bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.state_seal(namespace text, version bigint)
RETURNS TABLE (key bytea, applied_epoch bigint, applied_round bigint, value bytea)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $function$
    SELECT * FROM kafka.state_seal(namespace, 0, version)
$function$;

-- What no checkpoint has seen goes at once; the rest stays until its checkpoints are gone.
CREATE FUNCTION kafka.state_unbuffer(
    namespace text, batch bigint, epoch bigint, round bigint, keys bytea[]
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

-- Restore: the namespace, or the chosen keys of it, become what staging holds.
CREATE FUNCTION kafka.state_replace(
    namespace text, staging regclass, keys bytea[], sealed_epoch bigint, sealed_round bigint
) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;
"""

PIPELINES = """
CREATE FUNCTION kafka.pipeline_create(pipeline text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.pipeline_lock(pipeline text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.pipeline_begin(pipeline text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM kafka.pipeline_create(pipeline_begin.pipeline);
    RETURN kafka.pipeline_lock(pipeline_begin.pipeline);
END
$function$;

CREATE FUNCTION kafka.pipeline_commit(
    pipeline text, batch_id bigint, topic_ids integer[], partitions integer[], next_offsets bigint[],
    rows bigint DEFAULT 0
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.pipeline_go_back(pipeline text, batch_id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.pipeline_reset(pipeline text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.pipeline_drop(pipeline text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
BEGIN
    PERFORM kafka.pipeline_lock(pipeline_drop.pipeline);
    PERFORM kafka.state_drop(n.namespace) FROM kafka.state_namespaces n WHERE n.pipeline = pipeline_drop.pipeline;
    DELETE FROM kafka.pipelines p WHERE p.name = pipeline_drop.pipeline;
END
$function$;

CREATE OR REPLACE VIEW kafka.consumer_lag AS
SELECT o.group_id, t.name AS topic, o.partition, o.committed_offset,
       p.log_start_offset, p.last_stable_offset, p.next_offset AS end_offset,
       greatest(p.next_offset - o.committed_offset, 0) AS lag,
       greatest(p.last_stable_offset - o.committed_offset, 0) AS stable_lag,
       g.state, o.metadata, o.leader_epoch, o.committed_at, 'group' AS kind
FROM kafka.consumer_offsets o
JOIN kafka.groups g USING (group_id)
JOIN kafka.topics t USING (topic_id)
JOIN kafka.partitions p ON p.topic_id = o.topic_id AND p.partition = o.partition
UNION ALL
SELECT 'pipeline:' || o.pipeline, t.name, o.partition, o.next_offset,
       p.log_start_offset, p.last_stable_offset, p.next_offset,
       greatest(p.next_offset - o.next_offset, 0),
       greatest(p.last_stable_offset - o.next_offset, 0),
       CASE WHEN l.last_error_at > l.updated_at THEN 'Failed' ELSE 'Pipeline' END,
       'batch ' || l.batch_id, NULL, o.updated_at, 'pipeline'
FROM kafka.pipeline_positions o
JOIN kafka.pipelines l ON l.name = o.pipeline
JOIN kafka.topics t USING (topic_id)
JOIN kafka.partitions p ON p.topic_id = o.topic_id AND p.partition = o.partition;
"""

COMMENTS = {
    "TABLE kafka.pipelines": "Pipelines: jobs that read topics in numbered batches, each committed with its results, "
    "state and positions in one transaction.",
    "COLUMN kafka.pipelines.batch_id": "The last batch that was committed; 0 before the first.",
    "COLUMN kafka.pipelines.created_at": "When the pipeline was first seen.",
    "COLUMN kafka.pipelines.updated_at": "When it last committed, or went back.",
    "COLUMN kafka.pipelines.last_error_at": "When it last failed; null if never.",
    "COLUMN kafka.pipelines.checkpoints_kept": "How many of its newest checkpoints are kept to go back to.",
    "COLUMN kafka.pipelines.name": "Name of the pipeline; kafka.consumer_lag shows it as pipeline:<name>.",
    "COLUMN kafka.pipelines.last_error": "Why it last failed; null if never.",
    "TABLE kafka.pipeline_positions": "Where each pipeline goes on reading. See kafka.consumer_lag.",
    "COLUMN kafka.pipeline_positions.next_offset": "The next offset the pipeline will read.",
    "COLUMN kafka.pipeline_positions.updated_at": "When it moved there.",
    "COLUMN kafka.pipeline_positions.topic_id": "The topic, see kafka.topics.",
    "COLUMN kafka.pipeline_positions.partition": "Partition number.",
    "COLUMN kafka.pipeline_positions.pipeline": "The pipeline, see kafka.pipelines.",
    "TABLE kafka.pipeline_checkpoints": "The newest commits of each pipeline: kafka.pipeline_go_back returns to one.",
    "COLUMN kafka.pipeline_checkpoints.batch_id": "The batch that was committed; 0 is the empty start.",
    "COLUMN kafka.pipeline_checkpoints.rows": "How many input rows the batch had.",
    "COLUMN kafka.pipeline_checkpoints.created_at": "When it was committed.",
    "COLUMN kafka.pipeline_checkpoints.pipeline": "The pipeline, see kafka.pipelines.",
    "COLUMN kafka.pipeline_checkpoints.positions": "Its positions after the batch: topic, topic_id, partition and "
    "next_offset of each partition.",
    "COLUMN kafka.pipeline_checkpoints.seals": "How far its namespaces were sealed after the batch: epoch and round by "
    "namespace.",
    "TABLE kafka.state_namespaces": "Namespaces of kafka.state. Every change locks its row first.",
    "COLUMN kafka.state_namespaces.sealed_epoch": "Versions up to (sealed_epoch, sealed_round) are complete and "
    "applied; null before the first seal and where nothing is sealed.",
    "COLUMN kafka.state_namespaces.sealed_round": "See sealed_epoch.",
    "COLUMN kafka.state_namespaces.created_at": "When it was made.",
    "COLUMN kafka.state_namespaces.namespace": "Its name.",
    "COLUMN kafka.state_namespaces.ordering": "latest: a newer version replaces an older one at once; sealed: versions "
    "wait in kafka.state_buffer until they are sealed.",
    "COLUMN kafka.state_namespaces.pipeline": "The pipeline whose checkpoints cover it; null if none does.",
    "TABLE kafka.state": "Versioned values by namespace and key. Write with kafka.state_put, never directly.",
    "COLUMN kafka.state.epoch": "First part of the version; 0 where offsets are versions.",
    "COLUMN kafka.state.round": "Second part of the version: a round within the epoch, or a partition offset.",
    "COLUMN kafka.state.updated_at": "When the row last changed.",
    "COLUMN kafka.state.namespace": "The namespace, see kafka.state_namespaces.",
    "COLUMN kafka.state.key": "The key, at most 2048 bytes.",
    "COLUMN kafka.state.value": "The value; null if the key was deleted at this version. JSON reads as "
    "kafka.state_json(value).",
    "TABLE kafka.state_history": "What a key was before a batch changed it, for as long as a checkpoint before that "
    "batch is kept.",
    "COLUMN kafka.state_history.batch_id": "The batch of the namespace's pipeline that changed the key.",
    "COLUMN kafka.state_history.epoch": "First part of the version before; null if the key was not there.",
    "COLUMN kafka.state_history.round": "Second part of the version before.",
    "COLUMN kafka.state_history.namespace": "The namespace.",
    "COLUMN kafka.state_history.key": "The key.",
    "COLUMN kafka.state_history.value": "The value before; null if it was deleted or not there.",
    "TABLE kafka.state_buffer": "Versions of sealed namespaces that wait to be sealed, in whatever order they came.",
    "COLUMN kafka.state_buffer.epoch": "First part of the version.",
    "COLUMN kafka.state_buffer.round": "Second part of the version.",
    "COLUMN kafka.state_buffer.added_in": "The batch of the namespace's pipeline that brought it; 0 without one.",
    "COLUMN kafka.state_buffer.removed_in": "The batch that applied it, kept to go back to; null while it waits.",
    "COLUMN kafka.state_buffer.namespace": "The namespace.",
    "COLUMN kafka.state_buffer.key": "The key.",
    "COLUMN kafka.state_buffer.value": "The value; null deletes the key.",
    "FUNCTION kafka.state_create(text, text, text)": "Makes a namespace, ordering latest or sealed, on its own or part "
    "of a pipeline. False if it is there already; an error if it is there with other settings.",
    "FUNCTION kafka.state_lock(text, boolean)": "Locks a namespace, shared or alone; called by the functions that "
    "change it.",
    "FUNCTION kafka.state_batch(text)": "The batch that a pipeline commits next: changes are remembered under it.",
    "FUNCTION kafka.state_drop(text)": "Removes a namespace and all it holds.",
    "FUNCTION kafka.state_check(bytea, bytea, bigint, bigint)": "Refuses a key, value or version outside the limits.",
    "FUNCTION kafka.state_put(text, bytea, bytea, bigint, bigint)": "Puts a value at version (epoch, round): applied, "
    "unchanged, stale or conflict; in sealed namespaces buffered, unchanged, late or conflict.",
    "FUNCTION kafka.state_put(text, bytea, bytea, bigint)": "Puts a value at version (0, version), as for an offset.",
    "FUNCTION kafka.state_delete(text, bytea, bigint, bigint)": "Deletes a key at version (epoch, round); answers as "
    "kafka.state_put does.",
    "FUNCTION kafka.state_delete(text, bytea, bigint)": "Deletes a key at version (0, version).",
    "FUNCTION kafka.state_get(text, bytea)": "The value of a key; null if there is none.",
    "FUNCTION kafka.state_json(bytea)": "A value that is JSON, as jsonb.",
    "FUNCTION kafka.state_apply_from(text, text, bytea[], bytea[], bigint[], bigint[])": "Called by "
    "kafka.state_put_all and kafka.state_apply.",
    "FUNCTION kafka.state_put_all(text, bytea[], bytea[], bigint[], bigint[])": "Puts many at once, judged as if in "
    "version order: how many had which outcome, and the first conflict or late one.",
    "FUNCTION kafka.state_apply(text, regclass)": "Puts all rows (key, value, epoch, round) of a table, as "
    "kafka.state_put_all does.",
    "FUNCTION kafka.state_seal(text, bigint, bigint)": "Applies what waits up to version (epoch, round), which are "
    "then complete, and returns it in version order.",
    "FUNCTION kafka.state_seal(text, bigint)": "Seals up to version (0, version).",
    "FUNCTION kafka.state_unbuffer(text, bigint, bigint, bigint, bytea[])": "Called by kafka.state_seal and "
    "kafka.state_replace.",
    "FUNCTION kafka.state_replace(text, regclass, bytea[], bigint, bigint)": "Makes a namespace, or chosen keys of it, "
    "what a table of a restored snapshot holds.",
    "FUNCTION kafka.pipeline_create(text)": "Makes a pipeline with its empty checkpoint 0; false if it is there.",
    "FUNCTION kafka.pipeline_lock(text)": "Locks a pipeline and its namespaces until the transaction ends; answers its "
    "last committed batch.",
    "FUNCTION kafka.pipeline_begin(text)": "As kafka.pipeline_lock; makes the pipeline if it is not there. First call "
    "of a batch's transaction.",
    "FUNCTION kafka.pipeline_commit(text, bigint, integer[], integer[], bigint[], bigint)": "Last call of a batch's "
    "transaction: moves the positions and makes the checkpoint. False if the batch was committed before: then roll "
    "back.",
    "FUNCTION kafka.pipeline_go_back(text, bigint)": "Makes state, seals and positions of a pipeline what they were "
    "right after a batch; answers how many keys changed.",
    "FUNCTION kafka.pipeline_reset(text)": "Empties a pipeline: no positions, no state, batch 0.",
    "FUNCTION kafka.pipeline_drop(text)": "Removes a pipeline with its namespaces.",
    "VIEW kafka.consumer_lag": "How far each group, and each pipeline, is behind in each partition it has a position "
    "in.",
    "COLUMN kafka.consumer_lag.group_id": "The group, or pipeline:<name>.",
    "COLUMN kafka.consumer_lag.committed_offset": "The next offset that will be read.",
    "COLUMN kafka.consumer_lag.state": "State of the group; of a pipeline: Pipeline, or Failed if it failed since its "
    "last commit.",
    "COLUMN kafka.consumer_lag.metadata": "Text that the client stored with the offset; of a pipeline: its batch.",
    "COLUMN kafka.consumer_lag.kind": "group or pipeline.",
}

GRANTS = """
DO $grants$
DECLARE
    made regprocedure;
    can_write boolean := EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_gateway');
    can_read boolean := EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_reader');
BEGIN
    FOR made IN SELECT p.oid FROM pg_proc p
            WHERE p.pronamespace = 'kafka'::regnamespace AND p.proname ~ '^(state|pipeline)_' LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', made);
        IF can_write THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO tablewire_gateway', made);
        END IF;
    END LOOP;
    IF can_write THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON kafka.pipelines, kafka.pipeline_positions, kafka.pipeline_checkpoints,
            kafka.state_namespaces, kafka.state, kafka.state_history, kafka.state_buffer TO tablewire_gateway;
    END IF;
    IF can_read THEN
        GRANT SELECT ON kafka.pipelines, kafka.pipeline_positions, kafka.pipeline_checkpoints,
            kafka.state_namespaces, kafka.state TO tablewire_reader;
        GRANT EXECUTE ON FUNCTION kafka.state_get(text, bytea), kafka.state_json(bytea) TO tablewire_reader;
    END IF;
END
$grants$;
"""


def upgrade() -> None:
    for script in (TABLES, NAMESPACES, PUTS, BULK, PIPELINES):
        op.execute(script)
    for target, text in COMMENTS.items():
        quoted = text.replace("'", "''")
        op.execute(f"COMMENT ON {target} IS '{quoted}'")
    op.execute(GRANTS)


def downgrade() -> None:
    raise NotImplementedError("restore a backup: positions and state of pipelines have no place in the older schema")
