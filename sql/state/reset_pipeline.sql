-- Empty a pipeline: no positions, no state, batch 0.
-- Locks: the pipeline's row, then those of its namespaces in order.   Returns: nothing of interest.
SELECT kafka.pipeline_reset(%(pipeline)s)
