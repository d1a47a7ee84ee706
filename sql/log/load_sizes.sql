-- Bytes on disk of each topic (indexes and TOAST included), and where its partitions start and end.
-- Locks: none.   Returns: a row per partition.
SELECT t.topic_id, t.name, p.partition, p.next_offset - p.log_start_offset AS kept,
       sum(p.next_offset - p.log_start_offset) OVER (PARTITION BY t.topic_id)::bigint AS kept_in_topic,
       pg_total_relation_size(to_regclass('kafka.messages_' || t.topic_id)) AS topic_bytes
FROM kafka.topics t JOIN kafka.partitions p USING (topic_id)
WHERE %(names)s::text[] IS NULL OR t.name = ANY (%(names)s::text[])
ORDER BY t.name, p.partition
