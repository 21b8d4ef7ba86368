"""The policy, driven event by event with a clock of our own; no process anywhere."""

import os
import signal

import pytest

from quiver_actors.supervisor.decide import (
    AnnounceReady,
    AnnounceStopping,
    Exited,
    Finish,
    Fork,
    Forked,
    ForkFailed,
    IntakeStopRequested,
    Observed,
    Report,
    Signal,
    StopRequested,
    Supervision,
)
from quiver_actors.supervisor.exitcodes import ExitCode
from quiver_actors.supervisor.figures import NodeState
from quiver_actors.supervisor.spec import SECOND_NS, ChildSpec, Patience, RestartPolicy
from quiver_actors.supervisor.state import ChildState

CLEAN = 0
CRASH = 1 << 8
KILLED = int(signal.SIGKILL)
TERMINATED = int(signal.SIGTERM)


class World:
    """A `Supervision`, a clock, and processes that exist in name only."""

    def __init__(self, count: int = 2, patience: Patience | None = None) -> None:
        self.now_ns = 1000 * SECOND_NS
        specs = [ChildSpec(name=f"core_{n}", index=n, cpu=n, run=lambda context: 0) for n in range(count)]
        self.supervision = Supervision(specs, patience or Patience(), self.now_ns)
        self.pids = iter(range(100, 10_000))
        self.actions: list[object] = []

    def feed(self, *events: object) -> list[object]:
        """Feed events and carry out the forks that follow; returns what else is to be done, reports left out."""
        self.actions = [action for event in events for action in self.supervision.handle(event, self.now_ns)]  # type: ignore[arg-type]
        return self.visible()

    def visible(self) -> list[object]:
        return [action for action in self.actions if not isinstance(action, Report)]

    def reports(self) -> list[str]:
        return [action.event for action in self.actions if isinstance(action, Report)]

    def tick(self, seconds: float = 0) -> list[object]:
        self.now_ns += round(seconds * SECOND_NS)
        self.actions = list(self.supervision.tick(self.now_ns))
        return self.visible()

    def look(
        self,
        index: int,
        *,
        heartbeat_age: float = 0,
        stopped: bool = False,
        ready: bool = True,
        in_disk: bool = False,
    ) -> list[object]:
        self.supervision.begin_look(self.now_ns)
        heartbeat_ns = self.now_ns - round(heartbeat_age * SECOND_NS)
        return self.feed(Observed(index, ready, heartbeat_ns, stopped, in_disk))

    def pass_time(self, seconds: float) -> None:
        """Let time pass as it does for a healthy supervisor, which looks at its children all the while."""
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        while self.now_ns < end_ns:
            self.now_ns = min(end_ns, self.now_ns + SECOND_NS // 2)
            self.supervision.begin_look(self.now_ns)

    def start(self) -> "World":
        for action in self.tick():
            assert isinstance(action, Fork)
            self.feed(Forked(action.index, next(self.pids)))
        return self

    def ready(self) -> "World":
        self.start()
        for child in self.supervision.children:
            self.look(child.spec.index)
        return self

    def node_state(self) -> NodeState:
        return self.supervision.state

    def states(self) -> list[ChildState]:
        return [child.state for child in self.supervision.children]


def test_start_forks_every_child_at_once() -> None:
    assert World(3).tick() == [Fork(0), Fork(1), Fork(2)]


def test_readiness_is_announced_once_and_only_after_the_last_child() -> None:
    world = World(2).start()
    assert world.look(0) == []
    assert world.node_state() is NodeState.STARTING
    assert world.look(1) == [AnnounceReady()]
    assert world.node_state() is NodeState.READY
    world.feed(Exited(1, CRASH))
    assert world.node_state() is NodeState.DEGRADED
    world.tick(1)
    world.feed(Forked(1, 7))
    assert world.look(1) == []
    assert world.node_state() is NodeState.READY


def test_readiness_waits_for_a_child_that_died_while_starting() -> None:
    world = World(2).start()
    world.look(0)
    assert world.feed(Exited(1, CRASH)) == []
    assert world.node_state() is NodeState.STARTING


def test_death_is_answered_with_a_restart_after_the_backoff() -> None:
    world = World(2).ready()
    assert world.feed(Exited(0, KILLED)) == []
    assert world.states() == [ChildState.BACKOFF, ChildState.READY]
    assert world.supervision.next_deadline_ns() == world.now_ns + SECOND_NS // 10
    assert world.tick(0.09) == []
    assert world.tick(0.02) == [Fork(0)]
    assert world.supervision.child(0).restarts == 1


def test_death_too_often_fails_the_child_while_the_other_goes_on() -> None:
    world = World(2, Patience(restart=RestartPolicy(intensity_count=2))).ready()
    for _ in range(2):
        world.feed(Exited(0, CRASH))
        assert world.tick(11) == [Fork(0)]
        world.feed(Forked(0, next(world.pids)))
    assert world.feed(Exited(0, CRASH)) == []
    assert world.states() == [ChildState.FAILED, ChildState.READY]
    assert world.node_state() is NodeState.DEGRADED
    assert world.supervision.next_deadline_ns() is None


def test_readiness_counts_a_failed_child_as_decided() -> None:
    world = World(2, Patience(restart=RestartPolicy(intensity_count=0))).start()
    world.look(0)
    assert world.feed(Exited(1, CRASH)) == [AnnounceReady()]
    assert world.node_state() is NodeState.DEGRADED


def test_all_children_failed_ends_the_node_with_its_own_code() -> None:
    world = World(2, Patience(restart=RestartPolicy(intensity_count=0))).start()
    world.feed(Exited(0, CRASH))
    assert world.feed(Exited(1, CRASH)) == [AnnounceStopping(), Finish(ExitCode.ALL_FAILED)]


def test_fork_that_fails_is_tried_again_and_given_up_like_a_death() -> None:
    world = World(1, Patience(restart=RestartPolicy(intensity_count=1)))
    assert world.tick() == [Fork(0)]
    assert world.feed(ForkFailed(0, "Cannot allocate memory")) == []
    assert world.tick(0.2) == [Fork(0)]
    assert Finish(ExitCode.ALL_FAILED) in world.feed(ForkFailed(0, "Cannot allocate memory"))


def test_old_heartbeat_aborts_then_kills_then_restarts() -> None:
    world = World(1).ready()
    world.pass_time(11)
    assert world.look(0, heartbeat_age=11) == [Signal(0, signal.SIGABRT)]
    assert world.states() == [ChildState.HUNG]
    assert world.look(0, heartbeat_age=11) == []
    assert world.tick(1.9) == []
    assert world.tick(0.2) == [Signal(0, signal.SIGKILL)]
    assert world.tick(5) == []
    world.feed(Exited(0, KILLED))
    assert world.states() == [ChildState.BACKOFF]


def test_a_child_that_waits_for_its_disk_is_reported_and_not_aborted() -> None:
    """Its loop may sync by itself: it cannot die before the disk answers, and lives on when it has."""
    world = World(1).ready()
    world.pass_time(11)
    assert world.look(0, heartbeat_age=11, in_disk=True) == []
    assert world.reports() == ["worker.in_disk"]
    world.pass_time(9)
    assert world.look(0, heartbeat_age=20, in_disk=True) == []
    assert world.reports() == []
    assert world.look(0, heartbeat_age=20) == []
    world.pass_time(2)
    assert world.look(0, heartbeat_age=22) == [Signal(0, signal.SIGABRT)]


def test_old_heartbeat_before_readiness_is_no_hang() -> None:
    """Recovery of a long log may take minutes without a heartbeat."""
    world = World(1).start()
    world.pass_time(600)
    assert world.look(0, heartbeat_age=600, ready=False) == []


def test_heartbeat_is_counted_from_readiness_on() -> None:
    world = World(1).start()
    world.pass_time(100)
    world.look(0, heartbeat_age=100)
    world.pass_time(9)
    assert world.look(0, heartbeat_age=109) == []
    world.pass_time(2)
    assert world.look(0, heartbeat_age=111) == [Signal(0, signal.SIGABRT)]


def test_stopped_child_is_reported_not_killed_and_has_the_whole_timeout_when_it_goes_on() -> None:
    world = World(1).ready()
    world.pass_time(60)
    assert world.look(0, heartbeat_age=60, stopped=True) == []
    assert world.reports() == ["worker.suspended"]
    assert world.look(0, heartbeat_age=60, stopped=True) == []
    assert world.reports() == []
    world.pass_time(9)
    assert world.look(0, heartbeat_age=69) == []
    assert world.reports() == ["worker.resumed"]
    world.pass_time(2)
    assert world.look(0, heartbeat_age=71) == [Signal(0, signal.SIGABRT)]


def test_supervisor_that_was_itself_stopped_does_not_blame_its_children() -> None:
    world = World(1).ready()
    world.now_ns += 3600 * SECOND_NS
    assert world.look(0, heartbeat_age=3600) == []
    world.pass_time(11)
    assert world.look(0, heartbeat_age=3611) == [Signal(0, signal.SIGABRT)]


def test_stop_drains_every_process_and_finishes_cleanly() -> None:
    world = World(2).ready()
    assert world.feed(StopRequested("SIGTERM")) == [
        AnnounceStopping(),
        *[Signal(index, number) for index in (0, 1) for number in (signal.SIGTERM, signal.SIGCONT)],
    ]
    assert world.feed(Exited(0, CLEAN)) == []
    assert world.feed(Exited(1, CLEAN)) == [Finish(ExitCode.CLEAN)]


def test_stop_does_not_start_what_waits_for_its_restart() -> None:
    world = World(2).ready()
    world.feed(Exited(0, CRASH))
    world.feed(StopRequested("SIGTERM"))
    assert world.tick(30) == []
    assert world.feed(Exited(1, CLEAN)) == [Finish(ExitCode.CLEAN)]


def test_stop_while_starting_accepts_that_a_child_dies_of_the_signal() -> None:
    world = World(1).start()
    world.feed(StopRequested("SIGINT"))
    assert world.feed(Exited(0, TERMINATED)) == [Finish(ExitCode.CLEAN)]


@pytest.mark.parametrize("wait_status", [CRASH, KILLED, int(signal.SIGSEGV)])
def test_stop_with_a_crash_while_draining_is_not_clean(wait_status: int) -> None:
    world = World(1).ready()
    world.feed(StopRequested("SIGTERM"))
    assert world.feed(Exited(0, wait_status)) == [Finish(ExitCode.UNEXPECTED)]


def test_second_signal_kills_at_once_and_says_so() -> None:
    world = World(2).ready()
    world.feed(StopRequested("SIGINT"))
    assert world.feed(StopRequested("SIGINT")) == [Signal(0, signal.SIGKILL), Signal(1, signal.SIGKILL)]
    assert world.feed(StopRequested("SIGINT")) == []
    world.feed(Exited(0, KILLED))
    assert world.feed(Exited(1, KILLED)) == [Finish(ExitCode.FORCED)]


def test_stop_at_once_kills_without_draining() -> None:
    world = World(1).ready()
    assert world.feed(StopRequested("control stop", at_once=True)) == [AnnounceStopping(), Signal(0, signal.SIGKILL)]
    assert world.feed(Exited(0, KILLED)) == [Finish(ExitCode.FORCED)]


def test_drain_that_takes_too_long_is_killed() -> None:
    world = World(2).ready()
    world.feed(StopRequested("SIGTERM"))
    world.feed(Exited(0, CLEAN))
    assert world.tick(59) == []
    assert world.tick(2) == [Signal(1, signal.SIGKILL)]
    assert world.feed(Exited(1, KILLED)) == [Finish(ExitCode.UNEXPECTED)]


def test_stop_keeps_the_deadline_of_a_hung_child() -> None:
    world = World(1).ready()
    world.pass_time(11)
    world.look(0, heartbeat_age=11)
    world.feed(StopRequested("SIGTERM"))
    assert world.tick(3) == [Signal(0, signal.SIGKILL)]


def test_stop_with_nothing_left_alive_finishes_at_once() -> None:
    world = World(1, Patience(restart=RestartPolicy(intensity_count=5))).ready()
    world.feed(Exited(0, CRASH))
    assert world.feed(StopRequested("SIGTERM")) == [AnnounceStopping(), Finish(ExitCode.CLEAN)]


def test_sigkill_from_outside_is_reported_with_the_usual_culprit() -> None:
    world = World(1).ready()
    world.feed(Exited(0, KILLED))
    report = next(action for action in world.actions if isinstance(action, Report))
    assert report.fields["status"] == "SIGKILL"
    assert "out of memory" in str(report.fields["hint"])
    assert os.WIFSIGNALED(KILLED)


def test_intake_is_stopped_once_on_ready_children_and_on_those_that_become_ready() -> None:
    world = World()
    world.start()
    world.look(0)
    assert world.feed(IntakeStopRequested("asked")) == [Signal(0, signal.SIGUSR1)]
    assert world.feed(IntakeStopRequested("asked again")) == []
    assert world.look(1) == [Signal(1, signal.SIGUSR1), AnnounceReady()]
    world.feed(Exited(0, KILLED))
    assert world.tick(1) == [Fork(0)]
    assert world.feed(Forked(0, 500)) == []
    assert Signal(0, signal.SIGUSR1) in world.look(0)


def test_intake_of_a_node_that_stops_is_left_alone() -> None:
    world = World().ready()
    world.feed(StopRequested("TERM"))
    assert world.feed(IntakeStopRequested("asked")) == []
