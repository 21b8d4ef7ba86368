"""The end of a run: nothing breaks any more, and everything must come to rest, be let go of, and stop."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.store.disk.held import GRACE_NS
from quiver_actors.supervisor.exitcodes import ChildExit
from tests.sim.node.actors import Actor, SubscriberActor
from tests.sim.node.hoarders import HoardingGuest
from tests.sim.node.looking import held, hoarded_bytes, staged
from tests.sim.node.machine import Machine
from tests.sim.node.model import Violation
from tests.sim.node.operators import TopicActor
from tests.sim.node.sharing import claims_apart

if TYPE_CHECKING:
    from tests.sim.node.run import Run

REST_ROUNDS_MAX = 5_000
"""Rounds, in each of which everybody does something, in which everything must have come to rest once nothing breaks any more."""
_REST_PAUSE_NS, _IDLE_PAUSE_NS = 2 * MILLISECOND_NS, 50 * MILLISECOND_NS
"""Time that passes in a round of the calm; more of it where only a timer is waited for."""
_QUICK_ROUNDS = 400
"""What takes more of them waits for a timer, such as the next attempt to rescue a segment for which there was no room."""
_STOP_ROUNDS_MAX = 500
_COLLECT_EVERY = 500
_GONE_NS_MAX = 4 * GRACE_NS
"""Time in which workers must have noticed that all clients are gone, and taken back what guests keep of deleted segments."""
_GONE_PAUSE_NS, _GRACE_PAUSE_NS = GRACE_NS // 50, GRACE_NS // 5
"""Time that passes in a round then; more of it where only the end of the grace is waited for."""


class Calm:
    """Owner: the run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._machine = run.machine

    def rest(self) -> None:
        """Let everything come to its end: nothing breaks any more."""
        self._machine.faults.heal()
        for actor in self._run.clients:
            actor.message_kills.arm(0, after=False)
        self._run.world.is_resting = True
        # Prepared stages wait for their time on the wall clock, which may have jumped back.
        self._run.time.advance(10 * 3600 * SECOND_NS)
        pause_ns = _REST_PAUSE_NS
        for number in range(REST_ROUNDS_MAX):
            self._round(pause_ns)
            self._run.limits.check()
            if number % _COLLECT_EVERY == _COLLECT_EVERY - 1:
                gc.collect()  # what a client read and dropped may still be mapped, and hold an adopted core
            if number % 5 == 4:
                if self._is_at_rest():
                    return
                is_quick = number < _QUICK_ROUNDS and self._is_busy()
                pause_ns = _REST_PAUSE_NS if is_quick else _IDLE_PAUSE_NS
        raise Violation(f"not at rest after {REST_ROUNDS_MAX} rounds: {self._unrest()}")

    def _round(self, pause_ns: int) -> None:
        processes_round(self._machine, pause_ns)
        for actor in self._run.clients:
            for _ in range(3 if isinstance(actor, SubscriberActor) else 1):
                actor.step()
        self._run.operator_step()

    def _is_at_rest(self) -> bool:
        is_done = not self._is_busy() and not any(staged(self._machine)) and not self._left_over()
        return is_done and not claims_apart(self._machine, self._run.subscribers)

    def _is_busy(self) -> bool:
        """Whether an actor has something to do that no time needs to pass for."""
        return (
            not all(actor.is_idle for actor in self._run.clients)
            or not self._run.operator.is_idle
            or any(self._missing().values())
            or any(self._torn().values())
        )

    def _left_over(self) -> list[int]:
        """Return what is left over; nothing if a subscriber is left out, as its topic may owe it something and keeps its directories."""
        return [] if {"ann", "ben", "sid"} & {*self._run.without} else self._machine.left_over()

    def _missing(self) -> dict[str, list[Any]]:
        return {
            each.name: each.model.missing(each.subscriber)[:5] for each in self._run.subscribers if each.place.is_there
        }

    def _torn(self) -> dict[str, list[str]]:
        return {
            each.name: each.model.torn(each.subscriber)[:5] for each in self._run.subscribers if each.place.is_there
        }

    def _unrest(self) -> str:
        actors: list[Actor | TopicActor] = [*self._run.clients, self._run.operator]
        busy = [actor.name for actor in actors if not actor.is_idle]
        apart = claims_apart(self._machine, self._run.subscribers)
        left = f"staged {staged(self._machine)}, adopted {self._left_over()}, claims {apart}"
        return f"busy {busy}, missing {self._missing()}, torn {self._torn()}, {left}"

    def check_nothing_is_held(self) -> None:
        """All clients die but for those that hoard: within a few rounds no worker has a session, an arena or a claim of theirs, and when
        the grace is over nobody has blocks of deleted files."""
        for actor in self._run.clients:
            if isinstance(actor, HoardingGuest):
                actor.leave()
            else:
                actor.die()
                actor.close()
        gc.collect()  # a client that is closed may still be mapping what it read
        gone_ns, is_holding = 0, True
        while gone_ns < _GONE_NS_MAX:
            pause_ns = _GONE_PAUSE_NS if is_holding or gone_ns >= GRACE_NS else _GRACE_PAUSE_NS
            processes_round(self._machine, pause_ns)
            gone_ns += pause_ns
            is_holding = any(held(self._machine))
            if not is_holding and not any(hoarded_bytes(self._machine)):
                return
        hoarded = hoarded_bytes(self._machine)
        raise Violation(
            f"held for clients that are gone: {held(self._machine)}; blocks that only guests have: {hoarded}"
        )

    def stop(self) -> None:
        """The node is told to stop: within a few rounds every worker has sealed what it has and ended well."""
        self._machine.request_stop()
        for _ in range(_STOP_ROUNDS_MAX):
            processes_round(self._machine)
            if self._machine.has_stopped:
                break
        else:
            raise Violation(f"the node has not stopped after {_STOP_ROUNDS_MAX} rounds")
        if set(exits := self._machine.exits()) != {int(ChildExit.DRAINED) << 8}:
            raise Violation(f"workers that were told to stop have ended with {exits}")


def processes_round(machine: Machine, pause_ns: int = _REST_PAUSE_NS) -> None:
    """Let every process do something, and some time pass."""
    machine.step_supervisor()
    for core in range(machine.settings.cores):
        machine.step_worker(core)
        for _ in range(3):
            machine.step_job(core)
    machine.time.advance(pause_ns)
