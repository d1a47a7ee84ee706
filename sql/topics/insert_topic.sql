-- Create a topic unless its name is taken.
-- Locks: the new row.   Returns: its ids, or no row when the name is taken.
INSERT INTO kafka.topics (name, partition_count)
VALUES (%(name)s, %(partition_count)s)
ON CONFLICT (name) DO NOTHING
RETURNING topic_id, topic_uuid
