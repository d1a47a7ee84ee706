-- Dead letters by what is known of them, oldest first; of a filter that is null all.
-- Locks: none.   Returns: a row per dead letter.
SELECT l.dead_letter_id, l.source_topic, l.source_partition, l.source_offset, l.group_id, l.tenant, l.idempotency_key,
       l.attempts, l.copies, l.last_error, l.state, t.name, l.dlq_partition, l.dlq_offset, l.redriven_offset,
       l.first_delivered_at, l.last_delivered_at, l.died_at, l.redriven_at
FROM kafka.dead_letters l JOIN kafka.topics t ON t.topic_id = l.dlq_topic_id
WHERE (%(ids)s::bigint[] IS NULL OR l.dead_letter_id = ANY (%(ids)s::bigint[]))
  AND (%(topic)s::text IS NULL OR l.source_topic = %(topic)s::text)
  AND (%(group_id)s::text IS NULL OR l.group_id = %(group_id)s::text)
  AND (%(tenant)s::text IS NULL OR l.tenant = %(tenant)s::text)
  AND (%(key)s::text IS NULL OR l.idempotency_key = %(key)s::text)
  AND (%(error)s::text IS NULL OR strpos(l.last_error, %(error)s::text) > 0)
  AND (%(state)s::text IS NULL OR l.state = %(state)s::text)
  AND (%(before_ms)s::bigint IS NULL OR l.died_at < to_timestamp(%(before_ms)s::bigint / 1000.0))
  AND l.dead_letter_id > %(after_id)s
ORDER BY l.dead_letter_id
LIMIT %(limit)s
