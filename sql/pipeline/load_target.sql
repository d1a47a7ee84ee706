-- The columns of a target table.
-- Locks: none.   Returns: schema, table, column, its type, the type's category, whether it may not be null, and whether
-- an insert must name it; no row where there is no such table.
SELECT n.nspname::text, c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), t.typname::text,
       t.typcategory::text, a.attnotnull, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
       a.attgenerated = '' AND a.attidentity <> 'a'
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
WHERE c.oid = to_regclass(%(table)s) AND c.relkind IN ('r', 'p')
ORDER BY a.attnum
