-- The cluster's identity.
-- Locks: none.   Returns: one row.
SELECT cluster_uuid FROM kafka.cluster
