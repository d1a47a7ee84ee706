-- How far groups are behind, for monitoring.
-- Locks: none.   Returns: group, topic, partition, committed offset and lag, topics of a group together; at most
-- `limit` rows.
SELECT group_id, topic, partition, committed_offset, lag
FROM kafka.consumer_lag
ORDER BY group_id, topic, partition
LIMIT %(limit)s
