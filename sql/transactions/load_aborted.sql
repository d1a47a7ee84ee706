-- Aborted transactions of a partition that end at or after an offset.
-- Locks: none.   Returns: producer id, first and last offset, in order of their ends.
SELECT producer_id, first_offset, last_offset FROM kafka.aborted_transactions
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND last_offset >= %(from_offset)s
ORDER BY last_offset
