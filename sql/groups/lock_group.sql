-- Hold a group still while it is changed from outside.
-- Locks: the group's row; coordinators wait.   Returns: its state and how many members it has; no row if there is none.
SELECT g.state, (SELECT count(*) FROM kafka.group_members m WHERE m.group_id = g.group_id)
FROM kafka.groups g WHERE g.group_id = %(group_id)s FOR UPDATE
