-- The partition remembers that it drops states of producers, so that one who comes back may go on.
-- Before the states go, as a writer moves the partition before it remembers its producers: nobody waits in a circle.
-- Locks: the partition's row.   Returns: nothing.
UPDATE kafka.partitions SET producers_dropped_at = clock_timestamp()
WHERE topic_id = %(topic_id)s AND partition = %(partition)s
