"""Owns the files of one topic on one core: disk, log, segments, subscribers, retention, recovery, repair, engine."""
