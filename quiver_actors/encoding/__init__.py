"""Bundles turned into bytes: what producers lay into shared memory, and what a worker writes on its own account."""
