-- Hold a namespace alone until the transaction ends.
-- Locks: the namespace's row.   Returns: ordering, epoch and round of the seal.
SELECT ordering, sealed_epoch, sealed_round FROM kafka.state_lock(%(namespace)s, true)
