"""Business keys that a commit's records begin: written by a function whose plan PostgreSQL keeps.

Locks: none; a new function.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

FUNCTION = """
CREATE FUNCTION kafka.begin_new_keys(
    separator integer, tenants bytea, keys bytea, batches integer[], offsets bigint[],
    topic_ids integer[], partitions integer[], producer_ids bigint[], retentions_ms bigint[]
) RETURNS void
LANGUAGE plpgsql AS $function$
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
$function$;
"""

ARGUMENTS = "integer, bytea, bytea, integer[], bigint[], integer[], integer[], bigint[], bigint[]"
TARGET = f"FUNCTION kafka.begin_new_keys({ARGUMENTS})"
COMMENT = (
    "Begin the business keys of the records that a commit appends, none of which is known; else a unique violation. "
    "For gateways."
)


def upgrade() -> None:
    op.execute(FUNCTION)
    op.execute(f"COMMENT ON {TARGET} IS '{COMMENT}'")


def downgrade() -> None:
    op.execute(f"DROP {TARGET}")
