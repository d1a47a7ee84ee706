-- One range of a partition, cut at max_bytes but never before its first record.
-- The cut is found first, from sizes alone: values beyond it are never read, those in TOAST not before they are sent.
-- Both limits of rows bound the work whatever the lag; the outer one only tells the planner.
-- Locks: none.   Returns: a row per record in offset order.
SELECT "offset", "timestamp", timestamp_type, key, value, header_names, header_values,
       producer_id, producer_epoch, sequence, is_transactional, control_type
FROM kafka.messages
WHERE topic_id = %(topic_id)s AND partition = %(partition)s
  AND "offset" >= %(start_offset)s
  AND "offset" <= (
    SELECT max("offset")
    FROM (
        SELECT "offset", sum(size_bytes) OVER (ORDER BY "offset" ROWS UNBOUNDED PRECEDING) - size_bytes AS bytes_before
        FROM (
            SELECT "offset", 20 + coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)
                   + coalesce(pg_column_size(header_names) + pg_column_size(header_values), 0) AS size_bytes
            FROM kafka.messages
            WHERE topic_id = %(topic_id)s AND partition = %(partition)s
              AND "offset" >= %(start_offset)s AND "offset" < %(end_offset)s
            ORDER BY "offset"
            LIMIT %(max_rows)s
        ) AS candidates
    ) AS measured
    WHERE bytes_before < %(max_bytes)s
  )
ORDER BY "offset"
LIMIT %(max_rows)s
