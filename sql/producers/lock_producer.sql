-- Hold a producer id still while its next epoch is decided. Clients may raise their epoch by themselves,
-- so what partitions have seen counts too.
-- Locks: the producer's row.   Returns: the newest epoch, or no row when the id is unknown or that of a transactional
-- id, whose epochs are given out with its name only.
SELECT greatest(i.producer_epoch, (SELECT max(s.producer_epoch) FROM kafka.producer_sequences s
                                   WHERE s.producer_id = i.producer_id))
FROM kafka.producer_ids i WHERE i.producer_id = %(producer_id)s AND i.transactional_id IS NULL FOR UPDATE
