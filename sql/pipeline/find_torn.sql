-- Where the first transaction begins, per partition, of which these ranges hold a part only.
-- Locks: none.   Returns: topic_id, partition, offset; no row for a partition whose range need not be shorter.
SELECT topic_id, partition, first_offset
FROM kafka.find_torn(%(topic_ids)s::int[], %(partitions)s::int[], %(starts)s::bigint[], %(ends)s::bigint[])
