-- The records of dead letters.
-- Locks: none.   Returns: number, key, value, header names and values; no row where the record was deleted.
SELECT l.dead_letter_id, m.key, m.value, m.header_names, m.header_values
FROM kafka.dead_letters l
JOIN kafka.partitions p ON p.topic_id = l.dlq_topic_id AND p.partition = l.dlq_partition
JOIN kafka.messages m ON m.topic_id = l.dlq_topic_id AND m.partition = l.dlq_partition AND m."offset" = l.dlq_offset
WHERE l.dead_letter_id = ANY (%(ids)s::bigint[]) AND l.dlq_offset >= p.log_start_offset
