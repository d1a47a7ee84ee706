-- A pipeline, partition by partition.
-- Locks: none.   Returns: topic, partition, next offset, start of the log, end of what is committed, and the lag to it.
SELECT topic, partition, committed_offset, log_start_offset, last_stable_offset, stable_lag
FROM kafka.consumer_lag
WHERE kind = 'pipeline' AND group_id = 'pipeline:' || %(pipeline)s::text
ORDER BY topic, partition
