-- Hold a transaction whose time is over. Judged again once the lock is there: it may have been ended meanwhile.
-- Locks: the transaction's row.   Returns: the row, or none when its time is not over (any more).
SELECT producer_id, producer_epoch, state, transaction_timeout_ms, previous_epoch, ended_epoch, previous_producer_id,
       speaker_gateway, speaker_connection, (extract(epoch FROM updated_at) * 1000000)::bigint,
       extract(epoch FROM clock_timestamp() - started_at)::float8
FROM kafka.transactions
WHERE transactional_id = %(transactional_id)s AND state = 'Ongoing'
  AND started_at < now() - transaction_timeout_ms * interval '1 millisecond'
FOR UPDATE
