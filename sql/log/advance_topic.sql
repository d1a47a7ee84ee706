-- What advance_partitions does, for a commit of one topic in which nothing is part of a transaction and all batches have
-- one producer, or none: lock the partitions, move their ends, remember the producer. SQLSTATE TW006 and TW008 as there.
-- Locks: advisory, one per partition, in the order given (callers sort); partition rows; producer_sequences rows.
-- Returns: nothing of use.
-- {follows} and {number} as there; {in_topic}; {in_partitions}: an array of their numbers. The arrays behind it hold
-- what is said of a partition where its number is: {begins}, the expected next_offset; {ends}, the new one; {newest},
-- the largest timestamp. {producer} and its {epoch}, null without one; of each partition {last_sequences},
-- {run_lengths} and {windows} as in kafka.producer_sequences. All are parameters of the prepared statement that a usual
-- commit runs, with PostgreSQL 17 or newer.
CALL kafka.advance_topic({follows}, {number}, {in_topic}, {in_partitions}, {begins}, {ends}, {newest}, {producer},
    {epoch}, {last_sequences}, {run_lengths}, {windows})
