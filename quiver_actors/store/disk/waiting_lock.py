"""Waiting for an flock that others hold. The kernel wakes who waits when the holder lets go, or dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading


def wait_for_lock(descriptor: int, wait_seconds: float) -> bool:
    """Lock an open file exclusively, as soon as nobody else holds it. Returns False if that was not within so many seconds.

    Whoever looks again and again instead may find the lock held each time, where several want it. flock has no time limit, so a thread
    waits in it; one that nobody waits for any more ends with the holder, and holds nothing then.

    Raises:
        OSError: the file cannot be locked.
    """
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    errors: list[OSError] = []
    # The lock is that of the open file: it lasts while the caller's descriptor does, and no longer.
    own = os.dup(descriptor)

    def wait() -> None:
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
        except OSError as error:
            errors.append(error)
        finally:
            os.close(own)

    waiting = threading.Thread(target=wait, name="quiver-lock", daemon=True)
    waiting.start()
    waiting.join(wait_seconds)
    if errors:
        raise errors[0]
    return not waiting.is_alive()
