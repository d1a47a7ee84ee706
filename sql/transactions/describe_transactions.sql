-- Everything about these transactional ids.
-- Locks: none.   Returns: a row per id that exists; its partitions as parallel arrays.
SELECT t.transactional_id, t.producer_id, t.producer_epoch, t.state, t.transaction_timeout_ms, t.started_at,
       ARRAY(SELECT n.name FROM kafka.transaction_partitions tp JOIN kafka.topics n USING (topic_id)
             WHERE tp.producer_id = t.producer_id ORDER BY n.name, tp.partition) AS topics,
       ARRAY(SELECT tp.partition FROM kafka.transaction_partitions tp JOIN kafka.topics n USING (topic_id)
             WHERE tp.producer_id = t.producer_id ORDER BY n.name, tp.partition) AS partitions
FROM kafka.transactions t WHERE t.transactional_id = ANY (%(transactional_ids)s::text[])
