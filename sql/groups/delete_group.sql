-- Delete a group that has no members, with its offsets.
-- Locks: the group's row, if the coordinator is still who it was.   Returns: one row if it was deleted.
DELETE FROM kafka.groups g WHERE g.group_id = %(group_id)s AND g.coordinator_epoch = %(epoch)s RETURNING 1
