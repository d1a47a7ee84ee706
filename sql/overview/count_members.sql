-- How many members groups have, for monitoring.
-- Locks: none.   Returns: group and count; at most `limit` rows.
SELECT g.group_id, count(m.member_id)
FROM kafka.groups g LEFT JOIN kafka.group_members m USING (group_id)
GROUP BY g.group_id
ORDER BY g.group_id
LIMIT %(limit)s
