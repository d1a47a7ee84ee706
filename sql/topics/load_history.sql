-- Which history the database goes on from: that of a standby which took over, or of a backup that was restored, is
-- another one. Unknown on a standby.
-- Locks: none.   Returns: one row.
SELECT s.system_identifier::text,
       CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END AS timeline
FROM pg_control_system() s
