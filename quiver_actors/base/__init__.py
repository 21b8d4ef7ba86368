"""Owns what every process shares: values, units, settings, metrics, rights, and the messages between processes. Does no I/O on data."""
