"""Counters and events: the shared memory, the rings, decoding and output."""
