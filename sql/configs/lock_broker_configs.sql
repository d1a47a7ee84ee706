-- Hold the configs of brokers still while they are judged and replaced.
-- Locks: the cluster's row, which nobody else locks.   Returns: one row.
SELECT is_only_row FROM kafka.cluster FOR NO KEY UPDATE
