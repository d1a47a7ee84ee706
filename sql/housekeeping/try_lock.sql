-- One gateway at a time keeps house; the others go on.
-- Locks: advisory, until the transaction ends.   Returns: whether it was free.
SELECT pg_try_advisory_xact_lock(%(class_id)s, %(number)s)
