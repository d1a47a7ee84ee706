-- All a namespace holds as of one instant, or chosen keys of it, in the order of a snapshot file. Run as COPY.
-- Locks: none.   Returns: ordering and seal with each row; whether it waits to be sealed, key, epoch, round, value;
-- one row with a null key if there is nothing; no row if there is no such namespace.
SELECT n.ordering, n.sealed_epoch, n.sealed_round, e.is_buffered, e.key, e.epoch, e.round, e.value
FROM kafka.state_namespaces n
LEFT JOIN (
    SELECT s.namespace, false AS is_buffered, s.key, s.epoch, s.round, s.value FROM kafka.state s
    UNION ALL
    SELECT b.namespace, true, b.key, b.epoch, b.round, b.value FROM kafka.state_buffer b
    WHERE b.removed_in IS NULL
) e ON e.namespace = n.namespace AND (%(keys)s::bytea[] IS NULL OR e.key = ANY (%(keys)s::bytea[]))
WHERE n.namespace = %(namespace)s
ORDER BY e.is_buffered, e.key, e.epoch, e.round
