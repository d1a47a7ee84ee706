-- Count what went wrong, for those who watch.
-- Locks: one of sixteen rows.   Returns: nothing.
UPDATE kafka.delivery_counters c
SET retried = c.retried + %(retried)s, timed_out = c.timed_out + %(timed_out)s,
    dead_lettered = c.dead_lettered + %(dead_lettered)s, redriven = c.redriven + %(redriven)s
WHERE c.slot = pg_backend_pid() %% 16
