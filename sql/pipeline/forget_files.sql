-- Forget the files of batches that were undone, in the transaction that commits such a batch again.
-- Locks: the rows, under the pipeline's row.   Returns: nothing.
DELETE FROM kafka.pipeline_files WHERE pipeline = %(pipeline)s AND output = %(output)s AND batch_id >= %(batch_id)s
