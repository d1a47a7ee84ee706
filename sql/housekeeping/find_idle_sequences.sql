-- One small step of producer states that may go: idle for longer than the expiry, or beyond the limit of a partition.
-- Those of an open transaction stay, as with Kafka: a retry must be recognised until it ends.
-- Locks: none; each is looked at again when it is dropped.   Returns: a row per partition, its producers as arrays.
WITH crowded AS (
    SELECT topic_id, partition_id FROM kafka.producer_sequences
    GROUP BY topic_id, partition_id HAVING count(*) > %(limit)s
), idle AS (
    SELECT s.producer_id, s.topic_id, s.partition_id, s.updated_at FROM kafka.producer_sequences s
    WHERE s.updated_at < now() - %(expiry_ms)s * interval '1 millisecond'
      AND NOT EXISTS (SELECT FROM kafka.transaction_partitions tp WHERE tp.producer_id = s.producer_id)
    UNION
    SELECT ranked.producer_id, ranked.topic_id, ranked.partition_id, ranked.updated_at
    FROM (SELECT s.producer_id, s.topic_id, s.partition_id, s.updated_at, row_number() OVER (
              PARTITION BY s.topic_id, s.partition_id ORDER BY s.updated_at DESC, s.producer_id DESC) AS rank
          FROM kafka.producer_sequences s JOIN crowded USING (topic_id, partition_id)) AS ranked
    WHERE ranked.rank > %(limit)s
      AND NOT EXISTS (SELECT FROM kafka.transaction_partitions tp WHERE tp.producer_id = ranked.producer_id)
    LIMIT %(step)s
)
SELECT topic_id, partition_id, array_agg(producer_id), array_agg(updated_at::text) FROM idle
GROUP BY topic_id, partition_id
