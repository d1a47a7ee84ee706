-- The transactional id that has a producer id.
-- Locks: none.   Returns: one row, or none when there is none.
SELECT transactional_id FROM kafka.transactions WHERE producer_id = %(producer_id)s
