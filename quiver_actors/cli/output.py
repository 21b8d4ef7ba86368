"""Standard output of a command, as seen from the command: whether anybody still reads it."""

from __future__ import annotations

import select
import sys


def has_reader() -> bool:
    """Whether standard output has a reader. The reader of a pipe may have left, as `head` does after its last line.

    A command that waits for events has to ask: it would learn of it only by its next line, which may never come.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return True
    poll = select.poll()
    poll.register(descriptor, 0)
    return not any(events & select.POLLERR for _, events in poll.poll(0))
