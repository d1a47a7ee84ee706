-- Aborted transactions of a partition that end at or after an offset and begin in a range of offsets.
-- Locks: none.   Returns: producer id, first and last offset, in order of their beginnings.
SELECT producer_id, first_offset, last_offset FROM kafka.aborted_transactions
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND last_offset >= %(ending_from)s
  AND first_offset >= %(beginning_from)s AND first_offset < %(beginning_before)s
ORDER BY first_offset
