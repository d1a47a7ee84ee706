-- Move the end of each partition, provided that nobody else has moved it since it was read.
-- A partition that moved or is gone makes the count differ, and the division by zero (22012) undoes everything.
-- Locks: partition rows, under the partitions' advisory locks.   Returns: 1.
-- {rows}: integers (topic_id, partition, expected next_offset, new next_offset,
-- last stable offset if none was held back, largest timestamp in ms); {count}: how many.
-- While no transaction is open the last stable offset is the end and moves, to the first record of a transaction
-- that this commit begins or to the new end; otherwise it stays. It never goes back: DeleteRecords may have moved it.
WITH moved AS (
    UPDATE kafka.partitions AS p
    SET next_offset = written.next_offset,
        last_stable_offset = CASE WHEN p.last_stable_offset = p.next_offset
                                  THEN greatest(p.last_stable_offset, written.stable_offset)
                                  ELSE p.last_stable_offset END,
        max_timestamp = greatest(p.max_timestamp, (timestamp 'epoch' + make_interval(
            days => (written.max_timestamp_ms / 86400000)::int,
            secs => (written.max_timestamp_ms % 86400000) / 1000.0)) AT TIME ZONE 'UTC')
    FROM (VALUES {rows}) AS written (topic_id, partition, expected_offset, next_offset, stable_offset, max_timestamp_ms)
    WHERE p.topic_id = written.topic_id AND p.partition = written.partition
      AND p.next_offset = written.expected_offset
    RETURNING 1
)
SELECT 1 / (count(*) = {count})::int FROM moved
