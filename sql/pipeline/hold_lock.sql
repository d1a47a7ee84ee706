-- Have something to oneself for as long as this transaction is open, without limits on how long that may be.
-- Locks: the advisory lock given, if it is free.   Returns: whether it was.
SELECT pg_try_advisory_xact_lock(%(class_id)s, %(number)s)
FROM (SELECT count(set_config(name, '0', true)) FROM pg_settings
      WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')) AS unlimited
