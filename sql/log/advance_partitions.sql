-- Share the transactions that a commit appends to, lock its partitions and move their ends, provided that nobody else
-- has moved them since they were read. Remember what producers wrote last. SQLSTATE TW007 undoes everything if a
-- transaction is not open or a partition is not in it, TW006 if a partition was moved or a producer has a newer epoch,
-- TW008 if the commit that was sent before this one in the same session was undone.
-- Locks: transactions' rows, shared; advisory, one per partition, in the order given (callers sort); partition rows;
-- producer_sequences rows.
-- Returns: nothing of use.
-- Integers: {follows}: the number of the commit before, 0 if it does not matter; {number}: its own, 0 if none can follow.
-- Arrays of integers: {transactions} (producer_id, producer_epoch); {locks}, see gateway/storage/locks.py; {advances}
-- (topic_id, partition, expected next_offset, new next_offset, last stable offset if none was held back, largest
-- timestamp in ms); {advances_at}: where each of them begins, from 1; {extents} (producer_id, topic_id, partition, first
-- offset, last offset). {producers}: an array of kafka.remembered_producer. All are literals in a commit's string, and
-- parameters of the prepared statement that a usual commit runs, unless that one is of advance_topic.
CALL kafka.advance_partitions({follows}, {number}, {transactions}, {locks}, {advances}, {advances_at}, {extents},
    {producers})
