-- Whether a gateway can work with this database.
-- Locks: none.   Returns: whether it takes writes, and its schema's version.
SELECT NOT pg_is_in_recovery() AND NOT current_setting('transaction_read_only')::boolean,
       (SELECT version_num FROM kafka.alembic_version)
