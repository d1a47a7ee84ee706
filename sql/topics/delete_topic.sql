-- Delete a topic with its partitions and overrides; its records go with kafka.drop_topic_storage.
-- Its name is kept for a while: producers that number their records go on numbering if it is created anew.
-- Locks: the topic's and its partitions' rows.   Returns: the topic's id, or no row when it is gone.
WITH gone AS (
    DELETE FROM kafka.topics WHERE topic_id = %(topic_id)s RETURNING topic_id, name
), remembered AS (
    INSERT INTO kafka.deleted_topics (name) SELECT name FROM gone
    ON CONFLICT (name) DO UPDATE SET deleted_at = now()
)
SELECT topic_id FROM gone
