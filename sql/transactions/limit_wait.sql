-- Wait for locks no longer than this, in this database transaction only.
-- Locks: none.   Returns: nothing of use.
SELECT set_config('lock_timeout', %(wait_ms)s, true)
