-- How many partitions topics have.
-- Locks: none.   Returns: name and count of those that exist.
SELECT t.name, t.partition_count FROM kafka.topics t WHERE t.name = ANY (%(topics)s::text[])
