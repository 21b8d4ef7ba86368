"""Asks the kernel about a process, from /proc alone."""

from __future__ import annotations

STOPPED_STATES = frozenset("Tt")
"""States of a process that a signal or a debugger has stopped."""
IN_DISK_STATE = "D"
"""State of a process whose main thread waits for a disk, and gets no signal meanwhile."""


def process_state(pid: int) -> str | None:
    """The kernel's one-letter state (`R` running, `S` sleeping, `D` in the disk, `T` stopped, `Z` dead but not reaped); None
    when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            line = stat.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before it is in parentheses and may itself hold any character.
    return chr(line[line.rindex(b")") + 2])


def is_alive(pid: int) -> bool:
    """Whether there is such a process and it has not ended."""
    return process_state(pid) not in (None, "Z", "X")
