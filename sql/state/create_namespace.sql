-- Make a namespace, and its pipeline where one is named; one that is there with the same settings stays as it is.
-- Locks: none that others wait for.   Returns: whether it was made.
SELECT kafka.state_create(%(namespace)s, %(ordering)s, %(pipeline)s)
