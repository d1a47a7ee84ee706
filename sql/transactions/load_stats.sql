-- Counts of transactions, for metrics.
-- Locks: none.   Returns: one row.
SELECT started, committed, aborted, timed_out, active, coalesce(extract(epoch FROM oldest_open_age), 0)::float8
FROM kafka.transaction_stats
