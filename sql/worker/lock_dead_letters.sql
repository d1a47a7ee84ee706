-- Hold dead letters that were not redriven yet. What somebody else holds is left to them.
-- Locks: their rows.   Returns: number, topic, partition (null if the topic has none of that number any more) and group.
SELECT l.dead_letter_id, l.source_topic, p.partition, l.group_id
FROM kafka.dead_letters l
LEFT JOIN kafka.topics t ON t.name = l.source_topic
LEFT JOIN kafka.partitions p ON p.topic_id = t.topic_id AND p.partition = l.source_partition
WHERE l.dead_letter_id = ANY (%(ids)s::bigint[]) AND l.state = 'dead'
ORDER BY l.dead_letter_id FOR UPDATE OF l SKIP LOCKED
