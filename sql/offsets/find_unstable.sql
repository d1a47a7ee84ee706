-- Partitions of a group whose offsets an open transaction may yet change.
-- Locks: none.   Returns: topic id and partition.
SELECT DISTINCT topic_id, partition FROM kafka.transaction_offsets WHERE group_id = %(group_id)s
