-- Over which connections classic clients last spoke about the transactions of these transactional ids.
-- Locks: none.   Returns: a row for each that has such a client.
SELECT producer_id, speaker_gateway, speaker_connection, (extract(epoch FROM updated_at) * 1000000)::bigint
FROM kafka.transactions
WHERE transactional_id = ANY (%(transactional_ids)s::text[]) AND speaker_gateway IS NOT NULL
