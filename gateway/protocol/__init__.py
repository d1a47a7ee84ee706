"""Bytes: frames, messages, record batches. No I/O, no clock."""
