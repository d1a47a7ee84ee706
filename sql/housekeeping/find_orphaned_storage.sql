-- Tables of records whose topic has been deleted.
-- Locks: none.   Returns: their topic ids.
SELECT substring(c.relname FROM 'messages_([0-9]+)$')::int AS topic_id
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'kafka.messages'::regclass
  AND NOT EXISTS (SELECT FROM kafka.topics t
                  WHERE t.topic_id = substring(c.relname FROM 'messages_([0-9]+)$')::int)
