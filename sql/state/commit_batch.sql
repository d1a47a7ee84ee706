-- Last statement of a batch's commit: move the positions, make the checkpoint, trim the oldest.
-- Locks: as begin_batch, then the positions.   Returns: false if this batch was committed before.
SELECT kafka.pipeline_commit(%(pipeline)s, %(batch_id)s::bigint, %(topic_ids)s::integer[], %(partitions)s::integer[],
                             %(next_offsets)s::bigint[], %(rows)s::bigint)
