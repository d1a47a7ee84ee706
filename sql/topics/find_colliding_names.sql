-- Names that Kafka's metrics could not tell apart from the ones asked for: a.b and a_b.
-- Locks: none.   Returns: a row per such topic, the asked ones among them.
SELECT name FROM kafka.topics WHERE replace(name, '.', '_') = ANY (%(keys)s::text[])
