-- Put one value at a version; null deletes the key.
-- Locks: the namespace's row shared, then the key's row.   Returns: the outcome.
SELECT kafka.state_put(%(namespace)s, %(key)s::bytea, %(value)s::bytea, %(epoch)s::bigint, %(round)s::bigint)
