-- What was altered for one broker, and for all of them.
-- Locks: none.   Returns: one row of two objects, each null when nothing was.
SELECT (SELECT jsonb_object_agg(b.name, b.value) FROM kafka.broker_configs b WHERE b.broker_id = %(broker_id)s) AS own,
       (SELECT jsonb_object_agg(b.name, b.value) FROM kafka.broker_configs b WHERE b.broker_id IS NULL) AS shared
