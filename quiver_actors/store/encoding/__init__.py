"""Encodes bundles into bytes: log entries that producers lay into shared memory, and those that a worker makes itself."""
