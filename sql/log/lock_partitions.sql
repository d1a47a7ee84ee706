-- Take the write lock of each partition until the end of this database transaction.
-- Locks: advisory, one per partition, in the order given (callers sort).   Returns: nothing of use.
-- {keys}: integers, see gateway/storage/locks.py.
SELECT pg_advisory_xact_lock(key) FROM unnest(ARRAY[{keys}]::bigint[]) AS key
