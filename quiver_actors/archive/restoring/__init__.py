"""Rebuilding a data directory from the archive of a node, for a node that takes over from a dead one."""
