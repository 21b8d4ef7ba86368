"""Describes the children to be supervised, and how long to wait for them. Frozen; the owner builds these once, before the loop starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ..shm.counters import CountersPage, RegionWriter

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000

READY_STATES = frozenset([3, 4])
"""State words of a child's region that mean "it serves": ready and degraded (`quiver_actors.base.metrics.figures.WorkerState`)."""
STARTING_STATE = 1


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How soon a dead child is started again, and when the supervisor stops trying."""

    backoff_first_ns: int = 100 * MILLISECOND_NS
    backoff_max_ns: int = 10 * SECOND_NS
    backoff_reset_ns: int = 60 * SECOND_NS
    """A child that lived this long starts from the first backoff again."""
    intensity_count: int = 10
    """The most deaths within the window: with more, the child is failed."""
    intensity_window_ns: int = 60 * SECOND_NS


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long the supervisor waits for what, before it does something about it."""

    restart: RestartPolicy = RestartPolicy()
    heartbeat_timeout_ns: int = 10 * SECOND_NS
    """A ready child whose heartbeat is older hangs: SIGABRT (it prints its stacks), then SIGKILL."""
    abort_grace_ns: int = 2 * SECOND_NS
    """Time from SIGABRT to SIGKILL."""
    drain_timeout_ns: int = 60 * SECOND_NS
    """Time from SIGTERM to SIGKILL."""
    observe_interval_ns: int = 500 * MILLISECOND_NS
    """How often heartbeats are looked at."""


class ChildContext(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a child, in its own process."""

    index: int
    incarnation: int
    """The number of the child's process: 0 for the first one; it rises with every restart."""
    region: RegionWriter
    """The child's own region of the counters page, begun; it must set a ready state and keep the heartbeat up."""
    page: CountersPage
    """The counters page, in which the child reads what the supervisor says and writes only its own region."""
    wakeup_fd: int
    """Non-blocking pipe: one byte after a change of state makes the supervisor look at once. EAGAIN may be ignored."""


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One child: supervised for as long as the supervisor runs."""

    name: str
    index: int
    cpu: int | None
    """Core to pin it to; None: wherever the supervisor may run."""
    run: Callable[[ChildContext], int]
    """The child's life; what it returns is the exit code. Called after the fork, in a process with one thread."""


class Steward(Protocol):
    """A service that the node runs in the supervisor's loop: none of these calls may take long."""

    def answer(self, subject: str, body: bytes, uid: int) -> bytes:
        """The reply to a `control.Ask` of a user, whoever that is. Raises ValueError: it is none that this understands."""

    def reload(self) -> None:
        """SIGHUP: read again what can be, and log what came of it."""

    def step(self, now_ns: int) -> int | None:
        """Do what is due; returns when to be called again, None: after the next request."""
