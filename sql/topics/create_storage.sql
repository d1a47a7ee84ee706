-- Create the table that holds a new topic's records.
-- Locks: share update exclusive on kafka.messages.   Returns: nothing.
SELECT kafka.create_topic_storage(%(topic_id)s)
