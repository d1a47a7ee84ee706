-- Delete a topic with its partitions and overrides; its records go with kafka.drop_topic_storage.
-- Locks: the topic's and its partitions' rows.   Returns: the topic's id, or no row when it is gone.
DELETE FROM kafka.topics WHERE topic_id = %(topic_id)s RETURNING topic_id
