-- What a namespace is.
-- Locks: none.   Returns: ordering, pipeline, epoch and round of the seal; no row if there is no such namespace.
SELECT ordering, pipeline, sealed_epoch, sealed_round FROM kafka.state_namespaces WHERE namespace = %(namespace)s
