-- The staging tables of a pipeline, those that killed runs have left among them; or of one try at a batch; or those for
-- kafka.state. Only tables that this role may drop.
-- Locks: none.   Returns: their names.
SELECT c.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND starts_with(c.relname, %(prefix)s)
  AND pg_has_role(c.relowner, 'USAGE') AND c.relname LIKE '%%' || %(attempt)s::text
ORDER BY c.relname
