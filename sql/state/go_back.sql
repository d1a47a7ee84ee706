-- Make state, seals and positions of a pipeline what they were right after a batch.
-- Locks: the pipeline's row, then those of its namespaces in order.   Returns: how many keys changed.
SELECT kafka.pipeline_go_back(%(pipeline)s, %(batch_id)s::bigint)
