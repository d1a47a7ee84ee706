-- A transactional id that is used for the first time.
-- Locks: the new rows.   Returns: the producer id, or no row when somebody was quicker.
WITH producer AS (
    INSERT INTO kafka.producer_ids (client_id, transactional_id, transaction_timeout_ms)
    VALUES (%(client_id)s, %(transactional_id)s, %(timeout_ms)s)
    ON CONFLICT (transactional_id) WHERE transactional_id IS NOT NULL DO NOTHING
    RETURNING producer_id
)
INSERT INTO kafka.transactions (transactional_id, producer_id, producer_epoch, transaction_timeout_ms, client_id)
SELECT %(transactional_id)s, producer_id, 0, %(timeout_ms)s, %(client_id)s FROM producer
RETURNING producer_id
