-- The members of a group as they were when it was last stable.
-- Locks: none.   Returns: id, instance id, client id, host, subscribed topics and pattern of each.
SELECT member_id, instance_id, client_id, client_host, subscribed_topics, subscribed_regex
FROM kafka.group_members WHERE group_id = %(group_id)s ORDER BY client_id, member_id
