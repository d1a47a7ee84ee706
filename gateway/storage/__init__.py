"""PostgreSQL: the statements of sql/ as typed methods. Decides nothing."""
