-- Forget a topic's overrides.
-- Locks: the rows deleted, under the topic's row lock.   Returns: nothing.
DELETE FROM kafka.topic_configs WHERE topic_id = %(topic_id)s
