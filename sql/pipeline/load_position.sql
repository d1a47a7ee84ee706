-- Where a pipeline stands: its last committed batch, and the next offset of each partition it has read.
-- Locks: none.   Returns: a row per partition; one row without a topic if it has read none; none if there is no pipeline.
SELECT p.batch_id, t.name, o.topic_id, o.partition, o.next_offset
FROM kafka.pipelines p
LEFT JOIN kafka.pipeline_positions o ON o.pipeline = p.name
LEFT JOIN kafka.topics t ON t.topic_id = o.topic_id
WHERE p.name = %(pipeline)s
ORDER BY t.name, o.partition
