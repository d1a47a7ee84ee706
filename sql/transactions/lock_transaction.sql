-- Hold the transaction of a transactional id still while it is judged and changed.
-- Locks: the transaction's row.   Returns: the row, or none when the id is unknown.
SELECT producer_id, producer_epoch, state, transaction_timeout_ms, previous_epoch, ended_epoch, previous_producer_id,
       speaker_gateway, speaker_connection, (extract(epoch FROM updated_at) * 1000000)::bigint,
       extract(epoch FROM clock_timestamp() - started_at)::float8
FROM kafka.transactions WHERE transactional_id = %(transactional_id)s FOR UPDATE
