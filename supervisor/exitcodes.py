"""Exit codes of `quiver up` and of its workers. They are part of the interface: README documents them, scripts rely on them."""

from __future__ import annotations

import enum
import os
import signal


class ExitCode(enum.IntEnum):
    """How `quiver up` ended."""

    CLEAN = 0
    """Every worker drained."""
    UNEXPECTED = 1
    """An error of ours, or a worker that crashed or did not finish while draining. Nothing acknowledged is lost."""
    USAGE = 2
    """Wrong arguments, configuration, or an unsafe run directory."""
    ALREADY_RUNNING = 3
    """Another node holds the data directory or the run directory. `quiver status`: nothing is running."""
    DATA_DIR_UNUSABLE = 4
    """The data directory has another version, no permission or no room."""
    ALL_FAILED = 5
    """Every worker died too often."""
    FORCED = 130
    """The node was stopped at once, by a second signal or on demand; the log is replayed at the next start."""


class ChildExit(enum.IntEnum):
    """How a worker ended. Anything else is a crash."""

    DRAINED = 0
    CRASHED = 1
    CANNOT_OPEN = 4
    """An engine's directory could not be opened."""
    ENGINE_FAILED = 6
    """An engine failed in its durable path: restart, recovery goes on in a new log file."""


def describe_wait_status(status: int) -> str:
    """Spell a wait status for people: `exit 4 (cannot_open)`, `SIGKILL`, with the usual culprit where there is one."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = number in [*signal.Signals]
        return signal.Signals(number).name if known else f"signal {number}"
    code = os.WEXITSTATUS(status)
    named = {code.value: code.name.lower() for code in ChildExit}
    return f"exit {code} ({named[code]})" if code in named else f"exit {code}"
