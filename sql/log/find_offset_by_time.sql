-- The first record at or after a time, by offset order as Kafka answers it.
-- Locks: none.   Returns: offset and timestamp, or no row.
SELECT m."offset", m."timestamp"
FROM kafka.messages m
WHERE m.topic_id = %(topic_id)s AND m.partition = %(partition)s
  AND m."offset" >= %(start_offset)s AND m."offset" < %(end_offset)s AND m.control_type IS NULL
  AND m."timestamp" >= (timestamp 'epoch' + make_interval(
        days => (%(timestamp_ms)s::bigint / 86400000)::int,
        secs => (%(timestamp_ms)s::bigint %% 86400000) / 1000.0)) AT TIME ZONE 'UTC'
ORDER BY m."offset"
LIMIT 1
