"""Consumer groups: who owns what, decided by pure functions over values, with the time given."""
