-- The committed records of a range of offsets of one partition, in order, as columns that Arrow takes.
-- Locks: none.   Returns: a row per record. {…}: integers.
SELECT topic, partition, "offset", "timestamp", key, value, headers::text AS headers, producer_id
FROM kafka.committed_messages
WHERE topic_id = {topic_id} AND partition = {partition} AND "offset" >= {start} AND "offset" < {end}
ORDER BY "offset"
