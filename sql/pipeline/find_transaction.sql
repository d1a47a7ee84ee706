-- Who has a transactional id now.
-- Locks: none.   Returns: producer id and epoch; no row if the id is unknown.
SELECT producer_id, producer_epoch FROM kafka.transactions WHERE transactional_id = %(transactional_id)s
