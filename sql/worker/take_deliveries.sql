-- Deliver records to a worker: either some that were never tried, or one that was.
-- Locks: the group's row, shared; of its partitions those that nobody else holds.   Returns: the records.
SELECT * FROM kafka.take_deliveries(%(worker)s, %(group_id)s, %(topic_id)s, %(max_records)s, %(lease_ms)s,
                                    %(is_in_place)s, %(max_unsettled)s)
