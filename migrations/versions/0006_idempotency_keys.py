"""Business idempotency keys: which were begun, done or failed, and the functions by which workers begin and mark them.

Locks: share row exclusive on kafka.transactions for an instant (it gets a trigger); else new objects.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = """
-- No foreign key to topics: the keys of a deleted topic may be many, and go in small steps. Topic ids are never reused.
CREATE TABLE kafka.idempotency_keys (
    first_offset bigint,
    producer_id bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz,
    expires_at timestamptz NOT NULL,
    topic_id integer NOT NULL,
    first_partition integer,
    attempts integer NOT NULL DEFAULT 1,
    status text NOT NULL CHECK (status IN ('PENDING', 'COMMITTED', 'FAILED')),
    group_id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    owner text,
    last_error text,
    result_reference text,
    PRIMARY KEY (topic_id, group_id, tenant, key),
    -- The longest that an entry of the primary key's index can hold, with room to spare.
    CONSTRAINT idempotency_keys_size CHECK (
        octet_length(key) BETWEEN 1 AND 1024 AND octet_length(tenant) <= 256 AND octet_length(group_id) <= 512),
    -- Whoever holds a pending key holds it by an open transaction or by a lease.
    CONSTRAINT idempotency_keys_holder CHECK (
        CASE WHEN status = 'PENDING' THEN (producer_id IS NULL) = (lease_until IS NOT NULL)
             ELSE producer_id IS NULL AND lease_until IS NULL END)
) WITH (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX idempotency_keys_expiry ON kafka.idempotency_keys (expires_at);
CREATE INDEX idempotency_keys_unsettled ON kafka.idempotency_keys (producer_id) WHERE status <> 'COMMITTED';
"""

# Plans are kept, and the table may grow by far more than they were made for: the functions go by its indexes only.
FUNCTIONS = """
CREATE FUNCTION kafka.settle_keys() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $function$
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
$function$;

CREATE TRIGGER transactions_settle_keys AFTER UPDATE OF state ON kafka.transactions
FOR EACH ROW WHEN (OLD.state = 'Ongoing' AND NEW.state <> 'Ongoing') EXECUTE FUNCTION kafka.settle_keys();

CREATE FUNCTION kafka.session_owner() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $function$
    SELECT format('%s@%s', pg_backend_pid(), extract(epoch FROM pg_postmaster_start_time())::bigint)
$function$;

CREATE FUNCTION kafka.require_topic(topic text) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    found_id integer;
BEGIN
    SELECT t.topic_id INTO found_id FROM kafka.topics t WHERE t.name = require_topic.topic;
    IF found_id IS NULL THEN
        RAISE EXCEPTION 'no topic %', coalesce(quote_literal(topic), 'null') USING ERRCODE = 'TW003';
    END IF;
    RETURN found_id;
END
$function$;

CREATE FUNCTION kafka.claim_key(
    claimed_topic_id integer, claimed_group_id text, claimed_tenant text, claimed_key text, lease interval, owner text
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $function$
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
$function$;

CREATE FUNCTION kafka.begin_once(
    tenant text, topic text, group_id text, key text, lease interval DEFAULT '1 minute', owner text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;

CREATE FUNCTION kafka.mark_key(
    marked_topic_id integer, marked_group_id text, marked_tenant text, marked_key text, marker text,
    new_status text, reason text, result text
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $function$
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
$function$;

CREATE FUNCTION kafka.mark_success(
    tenant text, topic text, group_id text, key text, result text DEFAULT NULL, owner text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF coalesce(key, '') <> '' THEN
        PERFORM kafka.mark_key(
            kafka.require_topic(topic), coalesce(group_id, ''), coalesce(tenant, ''), key,
            coalesce(nullif(owner, ''), kafka.session_owner()), 'COMMITTED', NULL, result);
    END IF;
END
$function$;

CREATE FUNCTION kafka.mark_failure(
    tenant text, topic text, group_id text, key text, reason text, owner text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF coalesce(key, '') <> '' THEN
        PERFORM kafka.mark_key(
            kafka.require_topic(topic), coalesce(group_id, ''), coalesce(tenant, ''), key,
            coalesce(nullif(owner, ''), kafka.session_owner()), 'FAILED', coalesce(reason, 'no reason given'), NULL);
    END IF;
END
$function$;

CREATE FUNCTION kafka.extend_lease(
    tenant text, topic text, group_id text, key text, lease interval DEFAULT '1 minute', owner text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $function$
BEGIN
    UPDATE kafka.idempotency_keys k
    SET lease_until = clock_timestamp() + extend_lease.lease, updated_at = clock_timestamp()
    WHERE k.topic_id = kafka.require_topic(extend_lease.topic) AND k.group_id = coalesce(extend_lease.group_id, '')
      AND k.tenant = coalesce(extend_lease.tenant, '') AND k.key = extend_lease.key
      AND k.status = 'PENDING' AND k.producer_id IS NULL
      AND k.owner = coalesce(nullif(extend_lease.owner, ''), kafka.session_owner());
    RETURN FOUND;
END
$function$;
"""

VIEWS = """
CREATE VIEW kafka.keys_in_flight AS
SELECT t.name AS topic, k.group_id, k.tenant, k.key, k.attempts, k.owner, k.lease_until,
       k.lease_until <= clock_timestamp() AS is_lease_over, k.producer_id,
       (SELECT x.transactional_id FROM kafka.transactions x WHERE x.producer_id = k.producer_id) AS transactional_id,
       k.updated_at AS begun_at, clock_timestamp() - k.updated_at AS age, k.last_error
FROM kafka.idempotency_keys k JOIN kafka.topics t USING (topic_id)
WHERE k.status = 'PENDING' AND k.status <> 'COMMITTED';

CREATE VIEW kafka.failing_keys AS
SELECT t.name AS topic, k.group_id, k.tenant, k.key, k.attempts, k.last_error, k.owner, k.created_at,
       k.updated_at AS failed_at, k.expires_at
FROM kafka.idempotency_keys k JOIN kafka.topics t USING (topic_id)
WHERE k.status = 'FAILED' AND k.status <> 'COMMITTED';
"""

COMMENTS = {
    "TABLE kafka.idempotency_keys": "Business keys by topic, group and tenant: one row however often a key is sent or "
    "delivered.",
    "COLUMN kafka.idempotency_keys.first_offset": "Offset of the record that was enqueued for the key; while FAILED, "
    "of the last one that was tried.",
    "COLUMN kafka.idempotency_keys.producer_id": "Whose open transaction holds the key; null if none does.",
    "COLUMN kafka.idempotency_keys.created_at": "When the key was first seen.",
    "COLUMN kafka.idempotency_keys.updated_at": "When the row last changed.",
    "COLUMN kafka.idempotency_keys.lease_until": "Until when the owner of a PENDING key may work undisturbed.",
    "COLUMN kafka.idempotency_keys.expires_at": "From when on the key is forgotten, whatever its status; a held one "
    "when it is let go.",
    "COLUMN kafka.idempotency_keys.topic_id": "The topic.",
    "COLUMN kafka.idempotency_keys.first_partition": "Partition of that record.",
    "COLUMN kafka.idempotency_keys.attempts": "How often it was begun.",
    "COLUMN kafka.idempotency_keys.status": "PENDING: begun; COMMITTED: done; FAILED: may be tried again.",
    "COLUMN kafka.idempotency_keys.group_id": "The consumer group that works on it; empty: the topic's producers.",
    "COLUMN kafka.idempotency_keys.tenant": "The tenant; empty if there is none.",
    "COLUMN kafka.idempotency_keys.key": "The key, unique within topic, group and tenant.",
    "COLUMN kafka.idempotency_keys.owner": "Who began it last, and alone may mark it; null if a producer did.",
    "COLUMN kafka.idempotency_keys.last_error": "Why the last attempt that failed did.",
    "COLUMN kafka.idempotency_keys.result_reference": "What the worker left to find its result by.",
    "FUNCTION kafka.settle_keys()": "With the end of a transaction its keys are COMMITTED or FAILED.",
    "FUNCTION kafka.session_owner()": "Who begins and marks keys without a name: this database session.",
    "FUNCTION kafka.require_topic(text)": "The id of a topic by its name; an error if there is none.",
    "FUNCTION kafka.claim_key(integer, text, text, text, interval, text)": "What kafka.begin_once does to the "
    "registry.",
    "FUNCTION kafka.mark_key(integer, text, text, text, text, text, text, text)": "What kafka.mark_success and "
    "kafka.mark_failure do to the registry.",
    "FUNCTION kafka.begin_once(text, text, text, text, interval, text)": "Before the work for (tenant, topic, group, "
    "key): started (do it, then mark it), already_done, or in_flight (somebody else is at it). Arguments lease and "
    "owner are optional.",
    "FUNCTION kafka.mark_success(text, text, text, text, text, text)": "The work for a key that the caller began is "
    "done. An error if somebody else has begun it since. Arguments result and owner are optional.",
    "FUNCTION kafka.mark_failure(text, text, text, text, text, text)": "The work for a key that the caller began "
    "failed, and may be begun again. Argument owner is optional.",
    "FUNCTION kafka.extend_lease(text, text, text, text, interval, text)": "More time for a key that the caller began; "
    "false if it is no longer the caller's.",
    "VIEW kafka.keys_in_flight": "Keys that were begun and neither done nor failed yet, and who holds them.",
    "COLUMN kafka.keys_in_flight.topic": "The topic's name.",
    "COLUMN kafka.keys_in_flight.group_id": "The consumer group; empty: the topic's producers.",
    "COLUMN kafka.keys_in_flight.tenant": "The tenant; empty if there is none.",
    "COLUMN kafka.keys_in_flight.key": "The key.",
    "COLUMN kafka.keys_in_flight.attempts": "How often it was begun.",
    "COLUMN kafka.keys_in_flight.owner": "Who holds it; null if a transaction does.",
    "COLUMN kafka.keys_in_flight.lease_until": "Until when; null if a transaction holds it.",
    "COLUMN kafka.keys_in_flight.is_lease_over": "Whether somebody else may begin it by now.",
    "COLUMN kafka.keys_in_flight.producer_id": "Whose open transaction holds it.",
    "COLUMN kafka.keys_in_flight.transactional_id": "The transactional id of that producer.",
    "COLUMN kafka.keys_in_flight.begun_at": "When it was begun last, or its lease extended.",
    "COLUMN kafka.keys_in_flight.age": "How long ago that was.",
    "COLUMN kafka.keys_in_flight.last_error": "Why the attempt before failed.",
    "VIEW kafka.failing_keys": "Keys whose last attempt failed and that nobody has begun again.",
    "COLUMN kafka.failing_keys.topic": "The topic's name.",
    "COLUMN kafka.failing_keys.group_id": "The consumer group; empty: the topic's producers.",
    "COLUMN kafka.failing_keys.tenant": "The tenant; empty if there is none.",
    "COLUMN kafka.failing_keys.key": "The key.",
    "COLUMN kafka.failing_keys.attempts": "How often it was begun.",
    "COLUMN kafka.failing_keys.last_error": "Why the last attempt failed.",
    "COLUMN kafka.failing_keys.owner": "Who tried last; null if a producer did.",
    "COLUMN kafka.failing_keys.created_at": "When the key was first seen.",
    "COLUMN kafka.failing_keys.failed_at": "When the last attempt failed.",
    "COLUMN kafka.failing_keys.expires_at": "From when on it is forgotten.",
}

GRANTS = """
DO $grants$
BEGIN
    REVOKE ALL ON FUNCTION kafka.settle_keys(), kafka.require_topic(text),
        kafka.claim_key(integer, text, text, text, interval, text),
        kafka.mark_key(integer, text, text, text, text, text, text, text),
        kafka.begin_once(text, text, text, text, interval, text),
        kafka.mark_success(text, text, text, text, text, text),
        kafka.mark_failure(text, text, text, text, text, text),
        kafka.extend_lease(text, text, text, text, interval, text) FROM PUBLIC;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_gateway') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON kafka.idempotency_keys TO tablewire_gateway;
        GRANT SELECT ON kafka.keys_in_flight, kafka.failing_keys TO tablewire_gateway;
        GRANT EXECUTE ON FUNCTION kafka.settle_keys(),
            kafka.begin_once(text, text, text, text, interval, text),
            kafka.mark_success(text, text, text, text, text, text),
            kafka.mark_failure(text, text, text, text, text, text),
            kafka.extend_lease(text, text, text, text, interval, text) TO tablewire_gateway;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_reader') THEN
        GRANT SELECT ON kafka.keys_in_flight, kafka.failing_keys TO tablewire_reader;
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
    raise NotImplementedError("restore a backup: which keys were done has no place in the older schema")
