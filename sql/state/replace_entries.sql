-- Make a namespace, or chosen keys of it, what a table of a restored snapshot holds.
-- Locks: the namespace's row.   Returns: how many keys it holds now of those in the table.
SELECT kafka.state_replace(%(namespace)s, %(staging)s::text::regclass, %(keys)s::bytea[], %(epoch)s::bigint,
                           %(round)s::bigint)
