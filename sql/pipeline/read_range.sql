-- The committed records of a range of offsets of one partition, in order, as columns that Arrow takes.
-- Locks: none.   Returns: a row per record. {predicate}: the range, which raises if it is not all there any more.
SELECT topic, partition, "offset", "timestamp", key, value, headers::text AS headers, producer_id
FROM kafka.committed_messages
WHERE {predicate}
ORDER BY "offset"
