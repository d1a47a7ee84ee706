-- Forget one small step of business keys whose topic was deleted. Jumps from topic to topic in the primary key's index.
-- Locks: the rows deleted.   Returns: how many were forgotten.
WITH RECURSIVE found AS (
    SELECT min(k.topic_id) AS topic_id FROM kafka.idempotency_keys k
    UNION ALL
    SELECT (SELECT min(k.topic_id) FROM kafka.idempotency_keys k WHERE k.topic_id > found.topic_id)
    FROM found WHERE found.topic_id IS NOT NULL
), orphaned AS (
    SELECT found.topic_id FROM found
    WHERE found.topic_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM kafka.topics t WHERE t.topic_id = found.topic_id)
    LIMIT 1
), forgotten AS (
    DELETE FROM kafka.idempotency_keys WHERE (topic_id, group_id, tenant, key) IN (
        SELECT k.topic_id, k.group_id, k.tenant, k.key FROM kafka.idempotency_keys k
        WHERE k.topic_id = (SELECT topic_id FROM orphaned)
        LIMIT %(step)s
        FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT count(*) FROM forgotten
