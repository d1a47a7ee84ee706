-- Append records. The data follows in PostgreSQL's binary COPY format, made by gateway/protocol/copy_rows.py.
-- Locks: row exclusive on the topics' tables, under the partitions' advisory locks.   Returns: nothing.
COPY kafka.messages ("offset", "timestamp", producer_id, topic_id, partition, sequence, producer_epoch,
    timestamp_type, control_type, is_transactional, key, value, header_names, header_values)
FROM STDIN (FORMAT BINARY)
