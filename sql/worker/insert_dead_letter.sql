-- Remember a dead letter, unless its key has one already: that one stands for all copies.
-- Locks: its row; waits for whoever gives up the same key.   Returns: its number, and whether it is new.
INSERT INTO kafka.dead_letters AS l (
    group_id, source_topic, source_partition, source_offset, dlq_topic_id, tenant, idempotency_key, attempts, last_error,
    first_delivered_at, last_delivered_at)
SELECT %(group_id)s, %(topic)s, %(partition)s, %(offset)s, t.topic_id, %(tenant)s, %(key)s, %(attempts)s, %(error)s,
       %(first_delivered_at)s, %(last_delivered_at)s
FROM kafka.topics t WHERE t.name = %(dlq_topic)s
ON CONFLICT (group_id, source_topic, tenant, idempotency_key) WHERE state = 'dead' AND idempotency_key IS NOT NULL
DO UPDATE SET copies = l.copies + 1
RETURNING l.dead_letter_id, l.copies = 1
