-- How many bytes a row of these topics takes on disk, on average, in the topic where they are largest.
-- Locks: none.   Returns: one row: bytes, or null when there are no rows.
SELECT max(size_bytes / nullif(offsets_kept, 0)) FROM kafka.topic_sizes WHERE topic_id = ANY (%(topic_ids)s::int[])
