-- Transactional ids with their states, filtered as ListTransactions asks.
-- Locks: none.   Returns: a row per transactional id.
SELECT transactional_id, producer_id, state
FROM kafka.transactions
WHERE (%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
  AND (%(producer_ids)s::bigint[] IS NULL OR producer_id = ANY (%(producer_ids)s::bigint[]))
  AND (%(min_duration_ms)s::bigint < 0
       OR (state = 'Ongoing' AND started_at <= now() - %(min_duration_ms)s::bigint * interval '1 millisecond'))
ORDER BY transactional_id
