-- The open transaction of a transactional id, which the caller's own transaction is about to end.
-- Locks: the transaction's row.   Returns: producer id, epoch, state; no row if the id is unknown.
SELECT producer_id, producer_epoch, state FROM kafka.transactions WHERE transactional_id = %(transactional_id)s FOR UPDATE
