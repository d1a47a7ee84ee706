-- Deliveries that nobody answered in time, and what a worker of this name left behind.
-- Locks: none; settling them looks again.   Returns: the records, who had them, and whether it took too long.
SELECT d.partition, d."offset", m."timestamp", m.key, m.value, m.header_names, m.header_values, d.attempts,
       d.last_error, d.first_delivered_at, d.last_delivered_at, d.worker, d.leased_until < clock_timestamp()
FROM kafka.deliveries d
JOIN kafka.messages m ON m.topic_id = d.topic_id AND m.partition = d.partition AND m."offset" = d."offset"
WHERE d.group_id = %(group_id)s AND d.topic_id = %(topic_id)s AND d.state = 'acquired'
  AND (d.leased_until < clock_timestamp() OR d.worker = %(own_name)s)
ORDER BY d.partition, d."offset"
LIMIT %(limit)s
