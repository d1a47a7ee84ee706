-- The checkpoints that a pipeline can go back to, and whether there is such a pipeline.
-- Locks: none.   Returns: batch, rows, time, positions and seals of each, newest first.
SELECT c.batch_id, c.rows, c.created_at, c.positions, c.seals
FROM kafka.pipelines p JOIN kafka.pipeline_checkpoints c ON c.pipeline = p.name
WHERE p.name = %(pipeline)s ORDER BY c.batch_id DESC
