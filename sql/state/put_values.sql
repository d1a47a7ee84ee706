-- Put many values, judged together.
-- Locks: the namespace's row.   Returns: each outcome with its count, and the first conflict or late one.
SELECT outcome, puts, first_key, first_epoch, first_round
FROM kafka.state_put_all(%(namespace)s, %(keys)s::bytea[], %(values)s::bytea[], %(epochs)s::bigint[],
                         %(rounds)s::bigint[])
