-- The work for these keys is done.
-- Locks: the keys' rows in the registry.   Returns: nothing of use.
SELECT kafka.mark_success(n.tenant, %(topic)s, %(group_id)s, n.key, n.result, %(owner)s)
FROM unnest(%(tenants)s::text[], %(keys)s::text[], %(results)s::text[]) AS n (tenant, key, result)
