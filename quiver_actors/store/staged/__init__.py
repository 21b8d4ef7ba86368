"""Staged bundles and the keys of idempotent producers: their files, jobs and recovery."""
