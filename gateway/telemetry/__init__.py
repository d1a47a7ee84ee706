"""Logs and metrics: how the gateway tells what it does."""
