-- What this commit appends to open transactions. A partition that is not in its transaction undoes everything (22012).
-- Locks: the rows, under the partitions' advisory locks and the transactions' shared rows.   Returns: 1.
-- {rows}: integers (producer_id, topic_id, partition, first offset, last offset); {count}: how many.
WITH extended AS (
    UPDATE kafka.transaction_partitions tp
    SET first_offset = coalesce(tp.first_offset, written.first_offset), last_offset = written.last_offset
    FROM (VALUES {rows}) AS written (producer_id, topic_id, partition, first_offset, last_offset)
    WHERE tp.producer_id = written.producer_id AND tp.topic_id = written.topic_id AND tp.partition = written.partition
    RETURNING 1
)
SELECT 1 / (count(*) = {count})::int FROM extended
