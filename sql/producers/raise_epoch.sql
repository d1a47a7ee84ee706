-- Give a producer its next epoch.
-- Locks: the producer's row, held by lock_producer.   Returns: nothing.
UPDATE kafka.producer_ids SET producer_epoch = %(epoch)s, last_active_at = now()
WHERE producer_id = %(producer_id)s
