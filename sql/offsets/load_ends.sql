-- The partitions of topics by name, with the ends of their logs and what a group has committed.
-- Locks: none.   Returns: topic, topic id, partition, first and next offset, committed offset or null.
SELECT t.name, p.topic_id, p.partition, p.log_start_offset, p.next_offset, o.committed_offset
FROM kafka.topics t
JOIN kafka.partitions p USING (topic_id)
LEFT JOIN kafka.consumer_offsets o
    ON o.topic_id = p.topic_id AND o.partition = p.partition AND o.group_id = %(group_id)s
WHERE t.name = ANY (%(topics)s::text[]) OR (%(all_committed)s AND o.group_id IS NOT NULL)
ORDER BY t.name, p.partition
