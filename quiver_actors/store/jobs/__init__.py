"""Blocking work of an engine, packaged for a thread: commits, seals, checks, rescue, compaction, deletion."""
