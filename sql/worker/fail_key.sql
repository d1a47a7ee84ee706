-- The work for a key that was begun failed.
-- Locks: the key's row in the registry.   Returns: nothing of use.
SELECT kafka.mark_failure(%(tenant)s, %(topic)s, %(group_id)s, %(key)s, %(reason)s, %(owner)s)
