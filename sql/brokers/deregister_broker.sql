-- A gateway goes: the others need not wait for its silence.
-- Locks: the broker's row.   Returns: nothing.
DELETE FROM kafka.brokers WHERE broker_id = %(broker_id)s AND epoch = %(epoch)s
