-- Who has a broker id.
-- Locks: none.   Returns: host, port, epoch and last sign of life.
SELECT host, port, epoch, heartbeat_at FROM kafka.brokers WHERE broker_id = %(broker_id)s
