-- Forget what was altered for one broker, or for all of them (null).
-- Locks: the rows deleted, under the cluster's row lock.   Returns: nothing.
DELETE FROM kafka.broker_configs WHERE broker_id IS NOT DISTINCT FROM %(broker_id)s::integer
