-- Keep a group's coordinator the same until the transaction ends.
-- Locks: the group's row, shared.   Returns: one row if the coordinator is still who it was.
SELECT 1 FROM kafka.groups WHERE group_id = %(group_id)s AND coordinator_epoch = %(epoch)s FOR SHARE
