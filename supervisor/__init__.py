"""Processes: fork, pin, watch, restart, drain, stop. Knows no Arrow and no data; one thread, and light enough to fork from.

Policy is pure (`state`, `restart`, `decide`), everything that touches the world is in `loop`, `spawn`, `control` and `notify`.
"""
