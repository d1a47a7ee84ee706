-- The gateways that gave a sign of life lately, by the database's clock.
-- Locks: none.   Returns: id, host and port, lowest id first.
SELECT broker_id, host, port
FROM kafka.brokers
WHERE heartbeat_at >= clock_timestamp() - %(session_timeout_ms)s * interval '1 millisecond'
ORDER BY broker_id
