-- The producers that a partition knows, for DescribeProducers, and where their open transactions began in it.
-- Locks: none.   Returns: a row per producer.
SELECT s.producer_id, s.producer_epoch, s.last_sequence, nullif(split_part(s.batches, ':', -1), '')::bigint,
       tp.first_offset
FROM kafka.producer_sequences s
LEFT JOIN kafka.transaction_partitions tp
    ON tp.producer_id = s.producer_id AND tp.topic_id = s.topic_id AND tp.partition = s.partition_id
WHERE s.topic_id = %(topic_id)s AND s.partition_id = %(partition)s
ORDER BY s.producer_id
