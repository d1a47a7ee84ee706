-- Drop one small step of producer states: idle for longer than the expiry, or beyond the limit of a partition.
-- The partition remembers that it dropped some, so that a producer who comes back may go on.
-- Locks: the rows deleted and their partitions' rows.   Returns: how many states went.
WITH crowded AS (
    SELECT topic_id, partition_id FROM kafka.producer_sequences
    GROUP BY topic_id, partition_id HAVING count(*) > %(limit)s
), idle AS (
    SELECT producer_id, topic_id, partition_id FROM kafka.producer_sequences
    WHERE updated_at < now() - %(expiry_ms)s * interval '1 millisecond'
    UNION
    SELECT ranked.producer_id, ranked.topic_id, ranked.partition_id
    FROM (SELECT s.producer_id, s.topic_id, s.partition_id, row_number() OVER (
              PARTITION BY s.topic_id, s.partition_id ORDER BY s.updated_at DESC, s.producer_id DESC) AS rank
          FROM kafka.producer_sequences s JOIN crowded USING (topic_id, partition_id)) AS ranked
    WHERE ranked.rank > %(limit)s
    LIMIT %(step)s
), marked AS (
    UPDATE kafka.partitions p SET producers_dropped_at = now()
    WHERE (p.topic_id, p.partition) IN (SELECT topic_id, partition_id FROM idle)
), dropped AS (
    DELETE FROM kafka.producer_sequences s USING idle i
    WHERE s.producer_id = i.producer_id AND s.topic_id = i.topic_id AND s.partition_id = i.partition_id
    RETURNING 1
)
SELECT count(*) FROM dropped
