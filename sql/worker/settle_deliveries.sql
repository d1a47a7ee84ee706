-- Answer deliveries and move the group's committed offset; TW005 when one of them is not the worker's any more.
-- Locks: the group's row, shared; its partitions in order; its offsets.   Returns: nothing.
SELECT kafka.settle_deliveries(
    %(group_id)s, %(topic_ids)s::integer[], %(partitions)s::integer[], %(offsets)s::bigint[], %(attempts)s::integer[],
    %(workers)s::text[], %(states)s::text[], %(delays_ms)s::bigint[], %(errors)s::text[], %(are_uncounted)s::boolean[],
    %(must_be_expired)s)
