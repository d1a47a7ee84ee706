-- Remove one small step of unreadable rows, and aborted transactions that nobody reads any more; remember how far it went.
-- Locks: the rows deleted and the partition's row; a partition that another gateway cleans is skipped.   Returns: a row when it did something.
WITH chosen AS (
    SELECT topic_id, partition, deleted_before_offset AS first_offset,
           least(log_start_offset, deleted_before_offset + %(step)s) AS end_offset
    FROM kafka.partitions
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND deleted_before_offset < log_start_offset
    FOR NO KEY UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM kafka.messages m USING chosen c
    WHERE m.topic_id = c.topic_id AND m.partition = c.partition
      AND m."offset" >= c.first_offset AND m."offset" < c.end_offset
), forgotten AS (
    DELETE FROM kafka.aborted_transactions a USING chosen c
    WHERE a.topic_id = c.topic_id AND a.partition = c.partition AND a.last_offset < c.end_offset
)
UPDATE kafka.partitions p SET deleted_before_offset = c.end_offset
FROM chosen c WHERE p.topic_id = c.topic_id AND p.partition = c.partition
RETURNING p.deleted_before_offset, p.log_start_offset
