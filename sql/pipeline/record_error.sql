-- Note why a pipeline failed, for those who look at kafka.pipelines and kafka.consumer_lag.
-- Locks: the pipeline's row.   Returns: nothing.
UPDATE kafka.pipelines SET last_error = %(error)s, last_error_at = clock_timestamp() WHERE name = %(pipeline)s
