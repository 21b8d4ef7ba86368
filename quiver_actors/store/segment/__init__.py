"""Sealed segments: their bytes, the open one that becomes them, reading, checking, compacting. Pure."""
