-- Remove a pipeline with its namespaces.
-- Locks: the pipeline's row, then those of its namespaces in order.   Returns: nothing of interest.
SELECT kafka.pipeline_drop(%(pipeline)s)
