-- How far a group is behind in each partition.
-- Locks: none.   Returns: topic, partition, committed offset, end of the log, lag to it and to the last stable offset.
SELECT topic, partition, committed_offset, end_offset, lag, stable_lag
FROM kafka.consumer_lag WHERE group_id = %(group_id)s AND kind = 'group' ORDER BY topic, partition
