"""Forking a child so that nothing of the parent's leaks into it and it never outlives the parent.

Order matters and is this: all signals are blocked; fork; the child drops the parent's descriptors, asks to die with the parent,
checks that the parent has not died meanwhile, resets the handlers, opens its mask, pins itself, and only then runs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from .errors import UnsafeFork
from .exitcodes import ChildExit
from .log import log_event
from .signals import reset_in_child

FORBIDDEN_MODULES = ("pyarrow", "numpy")
"""Modules that start threads when they are imported: a forked child would hold locks that nobody releases."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_STDERR = 2
_libc = ctypes.CDLL(None, use_errno=True)


def check_fork_is_safe() -> None:
    """Raise UnsafeFork if this process has a second thread or one of `FORBIDDEN_MODULES`."""
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise UnsafeFork(
            f"the supervisor has {len(threads)} threads, a fork needs exactly one: find out what started the others"
        )
    loaded = [name for name in FORBIDDEN_MODULES if name in sys.modules]
    if loaded:
        raise UnsafeFork(f"the supervisor has imported {', '.join(loaded)}: workers import it after the fork")


def fork_child(name: str, cpu: int | None, release_in_child: Callable[[], None], run: Callable[[], int]) -> int:
    """Fork a process that calls `release_in_child`, then `run`, and exits with what it returns.

    Args:
        name: shown by `ps` and `top`; the kernel keeps 15 bytes.
        cpu: core to pin to, None for wherever the parent may run.
        release_in_child: closes what the child must not keep; called with signals blocked.
    Returns:
        The child's pid. The child itself never returns.
    Raises:
        UnsafeFork: see `check_fork_is_safe`.
        OSError: no room for another process.
    """
    check_fork_is_safe()
    parent_pid = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal that reached the child before its handlers are reset would be written to the parent's pipe.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _live(name, cpu, parent_pid, release_in_child, run)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _live(
    name: str, cpu: int | None, parent_pid: int, release_in_child: Callable[[], None], run: Callable[[], int]
) -> NoReturn:
    code = int(ChildExit.CRASHED)
    try:
        die_with(parent_pid)
        release_in_child()
        reset_in_child()
        faulthandler.enable(_STDERR)  # SIGABRT, sent to a hung child, prints where it hangs
        _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))
        _pin(name, cpu)
        code = run()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, the child ends here and must not unwind into the parent's frames
        traceback.print_exc()
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; leave at once if it has died already."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os._exit(ChildExit.CRASHED)


def _pin(name: str, cpu: int | None) -> None:
    if cpu is None:
        return
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        # The set of allowed cores has shrunk since the start: slower, but no reason not to serve.
        log_event("worker.pin_failed", {"worker": name, "cpu": cpu, "reason": error.strerror}, logging.WARNING)


def _prctl(option: int, argument: object) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
