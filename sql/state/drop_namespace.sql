-- Remove a namespace and all it holds.
-- Locks: the namespace's row.   Returns: nothing of interest.
SELECT kafka.state_drop(%(namespace)s)
