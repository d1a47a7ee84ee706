-- Apply what waits up to a version, in version order.
-- Locks: the namespace's row.   Returns: how many versions were applied.
SELECT count(*) FROM kafka.state_seal(%(namespace)s, %(epoch)s::bigint, %(round)s::bigint)
