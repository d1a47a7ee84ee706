-- Hold the transactions that this commit appends to, so that none of them ends meanwhile.
-- One that is not open, or has another epoch, makes the count differ: division by zero (22012) undoes everything.
-- Locks: the transactions' rows, shared.   Returns: 1.
-- {rows}: integers (producer_id, producer_epoch); {count}: how many.
SELECT 1 / (count(*) = {count})::int FROM (
    SELECT FROM kafka.transactions t JOIN (VALUES {rows}) AS writing (producer_id, producer_epoch)
        ON t.producer_id = writing.producer_id AND t.producer_epoch = writing.producer_epoch
    WHERE t.state = 'Ongoing'
    FOR SHARE OF t
) AS held
