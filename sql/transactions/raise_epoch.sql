-- A new instance, or one that recovers, gets the next epoch.
-- Locks: the transaction's row, held by lock_transaction, and its producer's.   Returns: nothing.
WITH raised AS (
    UPDATE kafka.transactions
    SET producer_epoch = %(epoch)s, previous_epoch = %(previous_epoch)s, ended_epoch = NULL, state = 'Empty',
        speaker_gateway = NULL, speaker_connection = NULL,
        transaction_timeout_ms = %(timeout_ms)s, client_id = %(client_id)s, updated_at = now()
    WHERE transactional_id = %(transactional_id)s
    RETURNING producer_id
)
UPDATE kafka.producer_ids i
SET producer_epoch = %(epoch)s, transaction_timeout_ms = %(timeout_ms)s, client_id = %(client_id)s, last_active_at = now()
FROM raised r WHERE i.producer_id = r.producer_id
