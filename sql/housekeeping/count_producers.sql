-- How many producers wrote lately.
-- Locks: none.   Returns: one number.
SELECT count(DISTINCT producer_id) FROM kafka.producer_sequences WHERE updated_at > now() - interval '5 minutes'
