-- The members of a group as they were when it was last stable.
-- Locks: none.   Returns: id, instance id, client id, host and subscribed topics of each.
SELECT member_id, instance_id, client_id, client_host, subscribed_topics
FROM kafka.group_members WHERE group_id = %(group_id)s ORDER BY client_id, member_id
