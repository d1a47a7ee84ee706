-- How many deliveries failed so far, for monitoring.
-- Locks: none.   Returns: one row: retried, timed out, dead-lettered, redriven.
SELECT retried, timed_out, dead_lettered, redriven FROM kafka.delivery_totals
