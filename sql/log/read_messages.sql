-- One range of a partition as one row of arrays, cut at max_bytes but never before its first record.
-- The inner LIMIT bounds the work whatever the lag; values beyond the cut are never fetched from TOAST.
-- Locks: none.   Returns: one row of arrays, all null when there is nothing.
SELECT array_agg("offset"), array_agg("timestamp"), array_agg(timestamp_type), array_agg(key), array_agg(value),
       array_agg(array_send(header_names)), array_agg(array_send(header_values)),
       array_agg(producer_id), array_agg(producer_epoch), array_agg(sequence),
       array_agg(is_transactional), array_agg(control_type)
FROM (
    SELECT *, sum(size_bytes) OVER (ORDER BY "offset" ROWS UNBOUNDED PRECEDING) - size_bytes AS bytes_before
    FROM (
        SELECT *, 20 + coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)
                  + coalesce(pg_column_size(header_names) + pg_column_size(header_values), 0) AS size_bytes
        FROM kafka.messages
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s
          AND "offset" >= %(start_offset)s AND "offset" < %(end_offset)s
        ORDER BY "offset"
        LIMIT %(max_rows)s
    ) AS candidates
) AS measured
WHERE bytes_before < %(max_bytes)s
