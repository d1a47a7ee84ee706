-- Begin the keys of records, and let the server end this transaction should its worker hang for longer than the lease.
-- Locks: the keys' rows in the registry, in order.   Returns: place in the arrays, and started, already_done or in_flight.
SELECT place, said FROM kafka.begin_work(%(topic)s, %(group_id)s, %(tenants)s::text[], %(keys)s::text[], %(lease_ms)s,
                                         %(owner)s)
