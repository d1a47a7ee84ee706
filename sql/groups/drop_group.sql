-- Delete a group that is locked and known to be empty, with its offsets. Its coordinator forgets it with its next write.
-- Locks: the group's row.   Returns: nothing.
DELETE FROM kafka.groups WHERE group_id = %(group_id)s
