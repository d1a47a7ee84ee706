-- Apply what waits up to a version, in version order.
-- Locks: the namespace's row.   Returns: what was applied, in that order: key, epoch, round, value.
SELECT key, applied_epoch, applied_round, value FROM kafka.state_seal(%(namespace)s, %(epoch)s::bigint, %(round)s::bigint)
