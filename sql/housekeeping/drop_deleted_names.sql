-- Forget names of topics that were deleted longer ago than any producer's state is kept.
-- Locks: the rows deleted.   Returns: nothing.
DELETE FROM kafka.deleted_topics WHERE deleted_at < now() - %(expiry_ms)s * interval '1 millisecond'
