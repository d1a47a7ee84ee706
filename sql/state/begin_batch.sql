-- First statement of a batch's commit: nobody else commits for this pipeline or changes its state meanwhile.
-- Locks: the pipeline's row, then those of its namespaces in order.   Returns: the last committed batch.
SELECT kafka.pipeline_begin(%(pipeline)s)
