-- These partitions belong to the producer's transaction too, if it is open and, where a speaker is given, that is who
-- speaks for it. A partition that was deleted meanwhile is left out.
-- Locks: the transaction's row, shared, so that it does not end meanwhile; the new rows.   Returns: a row if it was so.
WITH held AS (
    SELECT producer_id FROM kafka.transactions
    WHERE transactional_id = %(transactional_id)s AND producer_id = %(producer_id)s
      AND producer_epoch = %(epoch)s AND state = 'Ongoing'
      AND (%(gateway)s::bigint IS NULL
           OR speaker_gateway = %(gateway)s::bigint AND speaker_connection = %(connection)s::bigint)
    FOR SHARE
), joined AS (
    INSERT INTO kafka.transaction_partitions (producer_id, topic_id, partition)
    SELECT held.producer_id, p.topic_id, p.partition
    FROM held, unnest(%(topic_ids)s::int[], %(partitions)s::int[]) AS added (topic_id, partition)
    JOIN kafka.partitions p ON p.topic_id = added.topic_id AND p.partition = added.partition
    ON CONFLICT (producer_id, topic_id, partition) DO NOTHING
)
SELECT 1 FROM held
