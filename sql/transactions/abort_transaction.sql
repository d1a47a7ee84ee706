-- An operator's abort of whatever is open, which fences the producer.
-- Locks: as end_transaction.   Returns: what was done, in a sentence.
SELECT kafka.abort_transaction(%(transactional_id)s)
