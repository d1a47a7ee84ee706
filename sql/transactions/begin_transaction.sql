-- The transaction is open from now on and its clock starts anew, unless this client id has too many open ones.
-- Locks: the transaction's row, held by lock_transaction.   Returns: a row if it is open.
WITH begun AS (
    UPDATE kafka.transactions
    SET state = 'Ongoing', started_at = now(), updated_at = now(), ended_epoch = NULL, previous_epoch = NULL
    WHERE transactional_id = %(transactional_id)s
      AND (SELECT count(*) FROM kafka.transactions
           WHERE state = 'Ongoing' AND client_id IS NOT DISTINCT FROM %(client_id)s) < %(max_open)s
    RETURNING 1
), counted AS (
    UPDATE kafka.transaction_counters SET started = started + 1 FROM begun WHERE slot = pg_backend_pid() %% 16
)
SELECT 1 FROM begun
