-- Give out a producer id that nobody had before.
-- Locks: the new row.   Returns: the id and its epoch.
INSERT INTO kafka.producer_ids (client_id) VALUES (%(client_id)s) RETURNING producer_id, producer_epoch
