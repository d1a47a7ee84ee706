-- Open transactions whose time is over; those that another gateway deals with are skipped.
-- Locks: the rows found.   Returns: their transactional ids.
SELECT transactional_id FROM kafka.transactions
WHERE state = 'Ongoing' AND started_at < now() - transaction_timeout_ms * interval '1 millisecond'
ORDER BY started_at LIMIT %(step)s FOR UPDATE SKIP LOCKED
