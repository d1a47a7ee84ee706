-- Groups that somebody must look after, because their members' sessions end some time.
-- Locks: none.   Returns: their ids.
SELECT group_id FROM kafka.groups WHERE state <> 'Empty'
