-- Put all rows of a staging table, judged together.
-- Locks: the namespace's row.   Returns: each outcome with its count, and the first conflict or late one.
SELECT outcome, puts, first_key, first_epoch, first_round
FROM kafka.state_apply(%(namespace)s, %(staging)s::text::regclass)
