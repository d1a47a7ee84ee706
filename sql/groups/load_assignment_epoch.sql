-- The epoch of a consumer group's target assignment.
-- Locks: none.   Returns: one row.
SELECT assignment_epoch FROM kafka.groups WHERE group_id = %(group_id)s
