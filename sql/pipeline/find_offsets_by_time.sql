-- The first committed record at or after a time in each partition, by offset order as Kafka answers it.
-- Locks: none.   Returns: topic, partition, offset; no row for a partition that has no such record.
SELECT t.name, p.partition, found."offset"
FROM kafka.topics t
JOIN kafka.partitions p USING (topic_id)
CROSS JOIN LATERAL (
    SELECT m."offset"
    FROM kafka.committed_messages m
    WHERE m.topic = t.name AND m.partition = p.partition AND m."timestamp" >= %(at)s::timestamptz
    ORDER BY m."offset"
    LIMIT 1
) AS found
WHERE t.name = ANY (%(topics)s::text[])
