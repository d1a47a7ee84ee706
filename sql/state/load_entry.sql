-- What a key holds, and whether there is such a namespace.
-- Locks: none.   Returns: one row per namespace found: epoch, round and value; a null epoch if the key is not there.
SELECT s.epoch, s.round, s.value
FROM kafka.state_namespaces n
LEFT JOIN kafka.state s ON s.namespace = n.namespace AND s.key = %(key)s
WHERE n.namespace = %(namespace)s
