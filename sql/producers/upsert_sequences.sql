-- Remember the newest five batches of each producer that wrote in this commit.
-- Locks: producer_sequences rows, under the partitions' advisory locks.   Returns: nothing.
-- {rows}: integers and arrays of integers, in the order of the columns.
INSERT INTO kafka.producer_sequences (producer_id, topic_id, partition_id, producer_epoch, last_sequence, run_length,
    first_sequences, last_sequences, base_offsets, timestamps_ms)
VALUES {rows}
ON CONFLICT (producer_id, topic_id, partition_id) DO UPDATE SET
    producer_epoch = excluded.producer_epoch, last_sequence = excluded.last_sequence,
    run_length = excluded.run_length, first_sequences = excluded.first_sequences,
    last_sequences = excluded.last_sequences, base_offsets = excluded.base_offsets,
    timestamps_ms = excluded.timestamps_ms, updated_at = now()
