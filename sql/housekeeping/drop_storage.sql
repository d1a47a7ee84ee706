-- Drop the table of a deleted topic's records.
-- Locks: access exclusive on kafka.messages, for which it waits a quarter of a second at most.   Returns: false when it must be tried again.
SELECT kafka.drop_topic_storage(%(topic_id)s)
