-- The transactional id goes on with a new producer id at epoch 0.
-- Locks: the new row and the transaction's, held by lock_transaction.   Returns: the new id.
WITH producer AS (
    INSERT INTO kafka.producer_ids (client_id, transactional_id, transaction_timeout_ms)
    SELECT client_id, transactional_id, transaction_timeout_ms FROM kafka.transactions
    WHERE transactional_id = %(transactional_id)s
    RETURNING producer_id
)
UPDATE kafka.transactions t
SET previous_producer_id = t.producer_id, producer_id = p.producer_id, producer_epoch = 0,
    previous_epoch = %(previous_epoch)s, updated_at = now()
FROM producer p WHERE t.transactional_id = %(transactional_id)s
RETURNING t.producer_id
