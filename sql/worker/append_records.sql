-- Append records to topics; they become visible with the transaction.
-- Locks: the partitions' advisory locks in order, their rows.   Returns: topic, partition and offset of each, in order.
SELECT * FROM kafka.append_records(
    %(topics)s::text[], %(partitions)s::integer[], %(keys)s::bytea[], %(values)s::bytea[], %(header_counts)s::integer[],
    %(header_names)s::text[], %(header_values)s::bytea[])
