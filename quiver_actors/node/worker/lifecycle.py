"""The phases of a worker's life while its loop runs, which may follow which, and what each of them begins with.

Owner: the loop thread. Only the two requests may come from a signal handler or another thread.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from time import monotonic_ns

from quiver_actors.base.metrics.figures import WorkerState
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import Draining
from quiver_actors.node.worker.connections import Connections
from quiver_actors.node.worker.figures import FigurePublisher
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.topics import Topics
from quiver_actors.supervisor.exitcodes import ChildExit

FAILING_PATIENCE_NS = 10 * SECOND_NS
"""How long a worker with a failed engine waits for the last commits of its healthy ones."""
CLOSE_PATIENCE_NS = 2 * SECOND_NS
"""How long the last answers may take to leave."""


class Phase(enum.Enum):
    """Phase of a worker's life while its loop runs; `PHASE_TRANSITIONS` says which may follow which."""

    SERVING = "serving"
    DRAINING = "draining"
    """The worker was told to stop: it takes nothing more and seals everything."""
    FAILING = "failing"
    """An engine has failed: the others commit what they have taken, then the supervisor starts a new worker."""
    LEAVING = "leaving"
    """All work is done, the last answers leave."""


PHASE_TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.SERVING: frozenset([Phase.DRAINING, Phase.FAILING]),
    Phase.DRAINING: frozenset([Phase.LEAVING]),
    Phase.FAILING: frozenset([Phase.LEAVING]),
    Phase.LEAVING: frozenset(),
}

_SERVING = Phase.SERVING
"""CPython 3.11 takes longer to look up a member of an enum than to call a function."""


class Lifecycle:
    """The phase that a worker is in, and its way to the next one.

    Attributes:
        drain_is_requested: stop in good order; seen by the next turn.
        intake_stop_is_requested: take no more pushes, go on with everything else; seen by the next turn.
        is_moving: whether `advance` has more to look at than hosts that have failed; whoever requests something sets it, for good.
    """

    def __init__(
        self,
        topics: Topics,
        hosts: Mapping[str, EngineHost],
        connections: Connections,
        figures: FigurePublisher,
        journal: Journal,
    ) -> None:
        """
        Args:
            hosts: the worker's, those of adopted cores too; may change.
        """
        self.phase = Phase.SERVING
        self.drain_is_requested = False
        self.intake_stop_is_requested = False
        self.is_moving = False
        self.intake_is_stopped = False
        self._since_ns = 0
        self._topics = topics
        self._hosts = hosts
        self._connections = connections
        self._figures = figures
        self._journal = journal

    def advance(self, turned: Collection[EngineHost], now_ns: int) -> None:
        """Go on to the next phase if it is time.

        Args:
            turned: hosts that had their turn in this turn of the loop.
        """
        if self.phase is _SERVING:
            for host in turned:
                if host.is_failed:
                    self._begin_failing(host, now_ns)
                    return
            if self.drain_is_requested:
                self._begin_draining(now_ns)
            elif self.intake_stop_is_requested and not self.intake_is_stopped:
                self._stop_intake()
        elif self.phase is Phase.DRAINING:
            if all(host.is_drained for host in self._hosts.values()):
                self._enter(Phase.LEAVING, now_ns)
        elif self.phase is Phase.FAILING and (
            all(host.is_settled for host in self._hosts.values()) or now_ns - self._since_ns > FAILING_PATIENCE_NS
        ):
            self._enter(Phase.LEAVING, now_ns)

    @property
    def has_ended(self) -> bool:
        """Whether the last answers have left, or had their time; asked for while the worker is leaving."""
        if not any(session.connection.unsent_bytes for session in self._connections.sessions.values()):
            return True
        return monotonic_ns() - self._since_ns > CLOSE_PATIENCE_NS

    @property
    def outcome(self) -> ChildExit:
        """How the worker process is to end, given how the loop ended."""
        failed = any(host.is_failed for host in self._hosts.values())
        return ChildExit.ENGINE_FAILED if failed else ChildExit.DRAINED

    def _begin_draining(self, now_ns: int) -> None:
        self._enter(Phase.DRAINING, now_ns)
        self._figures.set_state(WorkerState.DRAINING)
        self._topics.freeze()
        self._connections.doors.close()
        for host in self._hosts.values():
            host.drain()

    def _stop_intake(self) -> None:
        self.intake_is_stopped = True
        self._journal.event("worker.intake_stop", sessions=len(self._connections.sessions))
        reason = Draining("the node is being drained: it takes no more bundles until it is started again")
        self._topics.stop_intake(reason)
        for host in self._hosts.values():
            host.stop_intake(reason)

    def _begin_failing(self, failed: EngineHost, now_ns: int) -> None:
        self._enter(Phase.FAILING, now_ns)
        self._figures.set_state(WorkerState.FAILED)
        self._topics.freeze()
        self._connections.doors.close()
        reason = Draining(f"the worker restarts because its topic {failed.engine.topic!r} has failed: push again")
        for host in self._hosts.values():
            host.stop_taking(reason)

    def _enter(self, phase: Phase, now_ns: int) -> None:
        assert phase in PHASE_TRANSITIONS[self.phase], f"{self.phase} to {phase}"
        self.phase, self.is_moving = phase, True
        self._since_ns = now_ns
        self._journal.event(f"worker.{phase.value}", sessions=len(self._connections.sessions))
