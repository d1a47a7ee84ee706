-- How far groups and pipelines are behind, for monitoring.
-- Locks: none.   Returns: group, topic, partition, committed offset and lag, topics of a group together; at most
-- `limit` rows. A group that is called like a pipeline's entry is left out: each name is told once.
SELECT DISTINCT ON (group_id, topic, partition) group_id, topic, partition, committed_offset, lag
FROM kafka.consumer_lag
ORDER BY group_id, topic, partition, kind DESC
LIMIT %(limit)s
