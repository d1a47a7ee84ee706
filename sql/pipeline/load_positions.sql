-- Where a pipeline goes on reading these topics.
-- Locks: none.   Returns: topic, partition, next offset; no row for a partition it has not read yet.
SELECT t.name, p.partition, p.next_offset
FROM kafka.pipeline_positions p
JOIN kafka.topics t USING (topic_id)
WHERE p.pipeline = %(pipeline)s AND t.name = ANY (%(topics)s::text[])
