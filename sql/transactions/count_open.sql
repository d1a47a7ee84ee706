-- How many transactions of this client id are open.
-- Locks: none.   Returns: one number.
SELECT count(*) FROM kafka.transactions WHERE state = 'Ongoing' AND client_id IS NOT DISTINCT FROM %(client_id)s
