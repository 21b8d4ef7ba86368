"""Durable subscribers of one engine: progress files, claims, registry. Pure: no I/O, no clock of its own."""
