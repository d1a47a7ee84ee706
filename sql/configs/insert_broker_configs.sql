-- Store what is altered for one broker, or for all of them (null).
-- Locks: the new rows, under the cluster's row lock.   Returns: nothing.
INSERT INTO kafka.broker_configs (broker_id, name, value)
SELECT %(broker_id)s::integer, name, value FROM unnest(%(names)s::text[], %(values)s::text[]) AS o (name, value)
