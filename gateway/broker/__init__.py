"""Use cases: load, decide, save, wake. No sockets, no wire formats."""
