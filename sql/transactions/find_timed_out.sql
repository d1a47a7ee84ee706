-- Open transactions whose time is over, the oldest first.
-- Locks: none.   Returns: their transactional ids.
SELECT transactional_id FROM kafka.transactions
WHERE state = 'Ongoing' AND started_at < now() - transaction_timeout_ms * interval '1 millisecond'
ORDER BY started_at LIMIT %(step)s
