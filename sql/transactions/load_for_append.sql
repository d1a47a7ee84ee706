-- The transactions of these producers with their partitions, held so that none of them ends meanwhile.
-- Locks: the transactions' rows, shared.   Returns: a row per producer that has a transactional id.
SELECT t.producer_id, t.producer_epoch, t.state, t.transaction_timeout_ms,
       ARRAY(SELECT tp.topic_id FROM kafka.transaction_partitions tp WHERE tp.producer_id = t.producer_id
             ORDER BY tp.topic_id, tp.partition) AS topic_ids,
       ARRAY(SELECT tp.partition FROM kafka.transaction_partitions tp WHERE tp.producer_id = t.producer_id
             ORDER BY tp.topic_id, tp.partition) AS partitions
FROM kafka.transactions t WHERE t.producer_id = ANY (%(producer_ids)s::bigint[])
ORDER BY t.producer_id
FOR SHARE OF t
