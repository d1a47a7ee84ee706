-- A producer id without epochs left gives up its transactional id.
-- Locks: the producer's row.   Returns: nothing.
UPDATE kafka.producer_ids SET transactional_id = NULL WHERE producer_id = %(producer_id)s
