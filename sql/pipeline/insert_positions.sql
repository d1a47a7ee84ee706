-- Note where a pipeline starts in partitions it has not read yet: what comes later is not missed, whatever "latest" means
-- by then.
-- Locks: the new rows, under the pipeline's row.   Returns: nothing.
INSERT INTO kafka.pipeline_positions (pipeline, topic_id, partition, next_offset)
SELECT %(pipeline)s, new.topic_id, new.partition, new.next_offset
FROM unnest(%(topic_ids)s::integer[], %(partitions)s::integer[], %(next_offsets)s::bigint[])
    AS new (topic_id, partition, next_offset)
ON CONFLICT (pipeline, topic_id, partition) DO NOTHING
