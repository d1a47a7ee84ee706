-- Say how many checkpoints of a pipeline are kept; older ones go with its next commit.
-- Locks: the pipeline's row.   Returns: its name if there is such a pipeline.
UPDATE kafka.pipelines SET checkpoints_kept = %(kept)s WHERE name = %(pipeline)s RETURNING name
