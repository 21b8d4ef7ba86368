"""Whitebox points of a real process: the n-th call of a kind at which it sends itself a signal, right before the call or right after.

Whoever wants one writes a `Plan` for a role; the next process of that role that begins takes it. Calls are those by which a process
changes files, talks to others, or makes processes. `sys.setprofile` sees them, so nothing in the product knows of this, and only a
process that has a plan is slowed down.

    DIRECTORY/worker    the plan that waits for a worker: `nth before|after SIGNAL`
    DIRECTORY/struck    a line for each that was carried out: `role pid before|after call SIGNAL`
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

FILE_CALLS = (
    "pwritev",
    "pwrite",
    "fdatasync",
    "fsync",
    "posix_fallocate",
    "ftruncate",
    "rename",
    "unlink",
    "mkdir",
    "fchmod",
    "open",
)
MESSAGE_CALLS = (
    "send",
    "sendall",
    "sendmsg",
    "recv",
    "recv_into",
    "recvmsg",
    "recvmsg_into",
    "connect",
    "accept",
    "_accept",
)
OTHER_CALLS = ("memfd_create", "fcntl", "flock", "mmap", "write", "read", "fork", "waitid", "pidfd_open", "kill")
CALLS = frozenset([*FILE_CALLS, *MESSAGE_CALLS, *OTHER_CALLS])


class Plan(NamedTuple):
    nth: int
    after: bool
    signal: signal.Signals


class Struck(NamedTuple):
    role: str
    pid: int
    point: str
    signal: signal.Signals


def is_point(function: Any) -> bool:
    """Whether a builtin function is one of `CALLS`; files that Python opens for its own sake are not meant."""
    return function.__name__ in CALLS and function.__module__ != "_io"


class Points:
    """The directory, as who plans sees it and as the processes do."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = 0
        directory.mkdir(exist_ok=True)

    def set(self, role: str, plan: Plan) -> None:
        waiting = self._directory / f"{role}.new"
        waiting.write_text(f"{plan.nth} {'after' if plan.after else 'before'} {plan.signal.name}")
        waiting.rename(self._directory / role)

    def withdraw(self, role: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._directory / role).unlink()

    def struck(self) -> Struck | None:
        """The next that was carried out and not asked for yet."""
        with contextlib.suppress(FileNotFoundError, IndexError):
            line = (self._directory / "struck").read_text().split("\n")[:-1][self._seen]
            self._seen += 1
            role, pid, moment, call, name = line.split()
            return Struck(role, int(pid), f"{moment} {call}", signal.Signals[name])
        return None

    def take(self, role: str) -> None:
        """Begin to live by the plan that waits for this role, if there is one. Called before threads are started."""
        with contextlib.suppress(FileNotFoundError):
            mine = self._directory / f"{role}.{os.getpid()}"
            (self._directory / role).rename(mine)
            nth, moment, name = mine.read_text().split()
            self._arm(role, Plan(int(nth), moment == "after", signal.Signals[name]))

    def take_in_forks(self, role: str) -> None:
        """Processes that this one forks take plans of that role, and none of this one's."""

        def begin() -> None:
            sys.setprofile(None)
            threading.setprofile(None)
            self.take(role)

        os.register_at_fork(after_in_child=begin)

    def _arm(self, role: str, plan: Plan) -> None:
        calls = itertools.count(1)
        event_wanted, moment = ("c_return", "after") if plan.after else ("c_call", "before")

        def look(frame: FrameType, event: str, argument: Any) -> None:
            if event == event_wanted and is_point(argument) and next(calls) == plan.nth:
                with (self._directory / "struck").open("a") as struck:
                    struck.write(f"{role} {os.getpid()} {moment} {argument.__name__} {plan.signal.name}\n")
                os.kill(os.getpid(), plan.signal)

        threading.setprofile(look)
        sys.setprofile(look)
