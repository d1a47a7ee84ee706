"""Tablewire: a Kafka protocol gateway whose storage is PostgreSQL."""
