-- The first record that carries the partition's largest timestamp.
-- Locks: none.   Returns: offset and timestamp, or no row when the readable log is empty.
SELECT m."offset", m."timestamp"
FROM kafka.messages m
WHERE m.topic_id = %(topic_id)s AND m.partition = %(partition)s
  AND m."offset" >= %(start_offset)s AND m."offset" < %(end_offset)s AND m.control_type IS NULL
ORDER BY m."timestamp" DESC, m."offset"
LIMIT 1
