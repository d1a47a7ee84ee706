-- Raise a topic's partition count, provided that it is still what was judged.
-- Locks: the topic's row.   Returns: the topic's id, or no row when somebody was quicker.
UPDATE kafka.topics SET partition_count = %(new_count)s
WHERE topic_id = %(topic_id)s AND partition_count = %(old_count)s
RETURNING topic_id
