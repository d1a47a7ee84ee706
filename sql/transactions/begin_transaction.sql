-- The producer's transaction is open from now on, with these partitions, if it was not; its clock starts anew. Nothing is
-- done where a speaker is given and another one speaks for it, or where this client id has too many open ones.
-- Locks: the transaction's row; the new rows.   Returns: a row if it was so.
WITH begun AS (
    UPDATE kafka.transactions
    SET state = 'Ongoing', started_at = now(), updated_at = now(), ended_epoch = NULL, previous_epoch = NULL
    WHERE transactional_id = %(transactional_id)s AND producer_id = %(producer_id)s
      AND producer_epoch = %(epoch)s AND state <> 'Ongoing'
      AND (%(gateway)s::bigint IS NULL
           OR speaker_gateway = %(gateway)s::bigint AND speaker_connection = %(connection)s::bigint)
      AND (SELECT count(*) FROM kafka.transactions
           WHERE state = 'Ongoing' AND client_id IS NOT DISTINCT FROM %(client_id)s) < %(max_open)s
    RETURNING producer_id
), counted AS (
    UPDATE kafka.transaction_counters SET started = started + 1 FROM begun WHERE slot = pg_backend_pid() %% 16
), joined AS (
    INSERT INTO kafka.transaction_partitions (producer_id, topic_id, partition)
    SELECT begun.producer_id, p.topic_id, p.partition
    FROM begun, unnest(%(topic_ids)s::int[], %(partitions)s::int[]) AS added (topic_id, partition)
    JOIN kafka.partitions p ON p.topic_id = added.topic_id AND p.partition = added.partition
    ON CONFLICT (producer_id, topic_id, partition) DO NOTHING
)
SELECT 1 FROM begun
