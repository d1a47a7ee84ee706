-- Forget dead letters, and make what is older than the oldest that remains unreadable; housekeeping removes the rows.
-- Locks: their rows, then those of the dead-letter topics' partitions.   Returns: how many are gone.
WITH gone AS (
    DELETE FROM kafka.dead_letters l WHERE l.dead_letter_id = ANY (%(ids)s::bigint[])
    RETURNING l.dead_letter_id, l.dlq_topic_id, l.dlq_partition, l.dlq_offset
), ends AS (
    SELECT g.dlq_topic_id, g.dlq_partition, coalesce(
        (SELECT min(l.dlq_offset) FROM kafka.dead_letters l
         WHERE l.dlq_topic_id = g.dlq_topic_id AND l.dlq_partition = g.dlq_partition
           AND l.dead_letter_id <> ALL (%(ids)s::bigint[])),
        max(g.dlq_offset) + 1) AS new_start
    FROM gone g GROUP BY g.dlq_topic_id, g.dlq_partition
), held AS (
    SELECT p.topic_id, p.partition, e.new_start FROM kafka.partitions p
    JOIN ends e ON e.dlq_topic_id = p.topic_id AND e.dlq_partition = p.partition
    ORDER BY p.topic_id, p.partition FOR UPDATE OF p
), raised AS (
    UPDATE kafka.partitions p
    SET log_start_offset = greatest(p.log_start_offset, h.new_start),
        last_stable_offset = greatest(p.last_stable_offset, h.new_start)
    FROM held h WHERE p.topic_id = h.topic_id AND p.partition = h.partition AND p.next_offset >= h.new_start
)
SELECT count(*) FROM gone
