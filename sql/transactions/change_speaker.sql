-- A classic client now speaks about its transactions over this connection.
-- Locks: the transaction's row, held by lock_transaction.   Returns: nothing.
UPDATE kafka.transactions SET speaker_gateway = %(gateway)s, speaker_connection = %(connection)s
WHERE transactional_id = %(transactional_id)s
