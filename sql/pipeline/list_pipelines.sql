-- All pipelines, or one: how far, how far behind, and whether the last try failed.
-- Locks: none.   Returns: name, batch, when, topics, partitions, offsets behind what is committed, the error since then.
SELECT p.name, p.batch_id, p.updated_at, array_agg(DISTINCT l.topic ORDER BY l.topic) FILTER (WHERE l.topic IS NOT NULL),
       count(l.partition), coalesce(sum(l.stable_lag), 0)::bigint,
       CASE WHEN p.last_error_at > p.updated_at THEN p.last_error END, p.last_error_at
FROM kafka.pipelines p
LEFT JOIN kafka.consumer_lag l ON l.kind = 'pipeline' AND l.group_id = 'pipeline:' || p.name
WHERE %(pipeline)s::text IS NULL OR p.name = %(pipeline)s
GROUP BY p.name
ORDER BY p.name
