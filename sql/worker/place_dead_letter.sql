-- Remember where a dead letter is.
-- Locks: its row.   Returns: nothing.
UPDATE kafka.dead_letters SET dlq_partition = %(partition)s, dlq_offset = %(offset)s
WHERE dead_letter_id = %(dead_letter_id)s
