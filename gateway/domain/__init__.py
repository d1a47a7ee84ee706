"""The rules, as pure functions over frozen values."""
