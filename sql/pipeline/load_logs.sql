-- Where the committed logs of topics start and end, all at one instant: what a cut is chosen from.
-- EndTxn moves all last stable offsets of a transaction in one commit, so one statement sees all or none of them moved.
-- Locks: none.   Returns: a row per partition of each topic that exists.
SELECT t.name, p.partition, p.topic_id, t.topic_uuid::text, p.log_start_offset, p.last_stable_offset,
       p.next_offset
FROM kafka.topics t
JOIN kafka.partitions p USING (topic_id)
WHERE t.name = ANY (%(topics)s::text[])
ORDER BY t.name, p.partition
