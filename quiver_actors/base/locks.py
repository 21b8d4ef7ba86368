"""Locks for calls that a user may interrupt: an exception of a signal handler never leaves one taken.

`with` promises so for a `threading.Lock` on all releases of Python but 3.14. There a signal handler may run between the moment at which
the lock is taken and the moment at which `with` knows that it has to be given back, so an interrupt at that place would have all other
threads wait for ever. 3.15 has closed the gap.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import cast

if sys.version_info[:2] == (3, 14):
    from _thread import RLock

    class _Lock(RLock):
        """A lock that knows its holder, and so can be given back after an interrupt that came before or after it was taken.

        No signal handler runs between the end of `__enter__` and the block, since it is a Python function, nor between the block and
        `__exit__`, since that one is not.
        """

        def __enter__(self) -> bool:
            try:
                self.acquire()
            except BaseException:
                try:  # noqa: SIM105 - a call of `suppress` could be interrupted
                    self.release()
                except RuntimeError:
                    pass  # the interrupt came before it was taken
                raise
            return True

    def new_lock() -> threading.Lock:
        """Make a lock, which is used by `with` and never taken twice by one thread."""
        return cast(threading.Lock, _Lock())

else:
    new_lock: Callable[[], threading.Lock] = threading.Lock
    """Makes a lock, which is used by `with` and never taken twice by one thread."""
