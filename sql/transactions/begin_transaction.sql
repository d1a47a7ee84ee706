-- The transaction is open from now on; its clock starts anew.
-- Locks: the transaction's row, held by lock_transaction.   Returns: nothing.
WITH begun AS (
    UPDATE kafka.transactions
    SET state = 'Ongoing', started_at = now(), updated_at = now(), ended_epoch = NULL, previous_epoch = NULL
    WHERE transactional_id = %(transactional_id)s
)
UPDATE kafka.transaction_counters SET started = started + 1 WHERE slot = pg_backend_pid() %% 16
