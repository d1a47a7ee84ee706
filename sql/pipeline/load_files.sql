-- The files of a pipeline's output that count.
-- Locks: none.   Returns: their paths, in order of batch and name.
SELECT path FROM kafka.output_files
WHERE pipeline = %(pipeline)s AND (%(output)s::text IS NULL OR output = %(output)s) ORDER BY batch_id, path
