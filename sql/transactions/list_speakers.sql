-- The same of those that changed last, for a gateway that starts.
-- Locks: none.   Returns: a row for each.
SELECT producer_id, speaker_gateway, speaker_connection, (extract(epoch FROM updated_at) * 1000000)::bigint
FROM kafka.transactions
WHERE speaker_gateway IS NOT NULL
ORDER BY updated_at DESC LIMIT %(limit)s
