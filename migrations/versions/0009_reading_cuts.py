"""Reading at scale: committed_messages without a function call per row and with the topic's id; cuts that no
transaction crosses.

Locks: share on every kafka.messages_<topic_id> until all of them have been read once (an index of markers is built:
producers wait meanwhile, readers do not); access exclusive on kafka.committed_messages for an instant.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

INDEX = """
CREATE INDEX messages_markers ON kafka.messages (topic_id, partition, producer_id, "offset")
    WHERE control_type IS NOT NULL;
"""

# The headers are put together in place: calling a function for each row took longer than all the rest of it. The
# topic's id lets a filter choose the one table below kafka.messages while the query is planned.
VIEW = """
CREATE OR REPLACE VIEW kafka.committed_messages AS
SELECT t.name AS topic, m.partition, m."offset", m."timestamp", m.key, m.value,
       CASE WHEN m.header_names IS NULL THEN '[]'::jsonb ELSE (
           SELECT coalesce(
               jsonb_agg(jsonb_build_object('name', h.name, 'value', encode(h.value, 'escape')) ORDER BY h.position),
               '[]'::jsonb)
           FROM unnest(m.header_names, m.header_values) WITH ORDINALITY AS h (name, value, position)) END AS headers,
       m.producer_id, m.producer_epoch, m.topic_id
FROM kafka.topics t
JOIN kafka.partitions p ON p.topic_id = t.topic_id
JOIN kafka.messages m ON m.topic_id = p.topic_id AND m.partition = p.partition
WHERE m."offset" >= p.log_start_offset
  AND m."offset" < p.last_stable_offset
  AND m.control_type IS NULL
  AND (NOT m.is_transactional OR coalesce((
      SELECT a.last_offset
      FROM kafka.aborted_transactions a
      WHERE a.topic_id = m.topic_id AND a.partition = m.partition AND a.producer_id = m.producer_id
        AND a.first_offset <= m."offset"
      ORDER BY a.first_offset DESC
      LIMIT 1) < m."offset", true));
"""

FUNCTION = """
CREATE FUNCTION kafka.find_torn(topic_ids integer[], partitions integer[], starts bigint[], ends bigint[])
RETURNS TABLE (topic_id integer, partition integer, first_offset bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
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
$function$;
"""

COMMENTS = {
    "COLUMN kafka.committed_messages.topic_id": "The topic's short id. Filter by it where there are thousands of "
    "topics: the query is planned in a fraction of the time.",
    "COLUMN kafka.committed_messages.headers": "Headers as [{name, value}, …] in order; decode(value, 'escape') gives "
    "the bytes of a value back.",
    "FUNCTION kafka.find_torn(integer[], integer[], bigint[], bigint[])": "For ranges [start, end) of partitions: "
    "where, per partition, the first committed transaction begins of which the ranges hold a part only. Once the "
    "ranges end there at the latest, and none is found any more, they hold each transaction whole or not at all.",
}

GRANTS = """
DO $grants$
BEGIN
    REVOKE ALL ON FUNCTION kafka.find_torn(integer[], integer[], bigint[], bigint[]) FROM PUBLIC;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_gateway') THEN
        GRANT EXECUTE ON FUNCTION kafka.find_torn(integer[], integer[], bigint[], bigint[]) TO tablewire_gateway;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_reader') THEN
        GRANT EXECUTE ON FUNCTION kafka.find_torn(integer[], integer[], bigint[], bigint[]) TO tablewire_reader;
    END IF;
END
$grants$;
"""


def upgrade() -> None:
    for script in (INDEX, VIEW, FUNCTION):
        op.execute(script)
    for target, text in COMMENTS.items():
        quoted = text.replace("'", "''")
        op.execute(f"COMMENT ON {target} IS '{quoted}'")
    op.execute(GRANTS)


def downgrade() -> None:
    raise NotImplementedError("restore a backup: the older schema has no place for what was written since")
