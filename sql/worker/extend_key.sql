-- More time for a key that was begun.
-- Locks: the key's row in the registry.   Returns: whether it is still ours.
SELECT kafka.extend_lease(%(tenant)s, %(topic)s, %(group_id)s, %(key)s,
                          %(lease_ms)s * interval '1 millisecond', %(owner)s)
