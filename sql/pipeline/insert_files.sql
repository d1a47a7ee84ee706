-- Files of a batch: they count when its transaction commits.
-- Locks: the new rows, under the pipeline's row.   Returns: nothing.
INSERT INTO kafka.pipeline_files (pipeline, output, batch_id, path, size_bytes)
SELECT %(pipeline)s, %(output)s, %(batch_id)s, file.path, file.size_bytes
FROM unnest(%(paths)s::text[], %(sizes)s::bigint[]) AS file (path, size_bytes)
