-- The sets of columns that are unique in a target table, so that ON CONFLICT can name them.
-- Locks: none.   Returns: an array of column names per unique index.
SELECT (SELECT array_agg(a.attname::text ORDER BY a.attname)
        FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[:i.indnkeyatts - 1]))
FROM pg_index i
WHERE i.indrelid = to_regclass(%(table)s) AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
