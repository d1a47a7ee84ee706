-- What the workers of groups have in hand, what waits for them and what they gave up, for monitoring.
-- Locks: none.   Returns: group, topic, in flight, waiting, dead letters; at most `limit` rows.
SELECT group_id, topic, in_flight, waiting, dead_letters
FROM kafka.delivery_stats
ORDER BY group_id, topic
LIMIT %(limit)s
