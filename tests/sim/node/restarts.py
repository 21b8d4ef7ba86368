"""How a simulated node is started again, as its seed wants it: with how many workers, after which end, and killed within the start itself.

Some of the seeds in which the number of workers changes push nothing but transactions, stop cleanly now and then, and kill workers while
they recover: what is published, delivered and deleted around starts like these must not look like a log that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.store.engine import Engine
from quiver_actors.supervisor.spec import Patience, RestartPolicy
from tests.disks.crashes import CrashMode
from tests.sim.node.model import Violation
from tests.sim.node.room import CORES_MAX

if TYPE_CHECKING:
    from tests.sim.node.machine import Machine

CORES = 2
_CORES_CHANGE_SHARE = 0.2
"""Share of the seeds, among those with room for it, in which the number of workers changes."""
_ONLY_STAGES_SHARE = 0.4
"""Share of the seeds with changing workers in which only transactions are pushed."""
_STORES_SHARE = 0.25
"""Share of the seeds with room for it in which an embedded store has the directory now and then, between two lives of the node."""
_START_KILL_SHARE = 0.3
_START_CALLS_MAX = 60
"""A start that is killed is killed at one of so many of its first changes of the disk."""
_STOP_ROUNDS_MAX = 60
PATIENCE = Patience(
    restart=RestartPolicy(backoff_first_ns=MILLISECOND_NS, backoff_max_ns=20 * MILLISECOND_NS, intensity_count=1 << 30),
    heartbeat_timeout_ns=3600 * SECOND_NS,
    drain_timeout_ns=3600 * SECOND_NS,
    observe_interval_ns=MILLISECOND_NS,
)
"""Patience of the supervisor: workers are restarted at once, and no worker is taken for hung."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """Restarts that a seed wants."""

    changes_cores: bool
    only_stages: bool
    has_stores: bool

    @classmethod
    def of(cls, seed: int, *, is_wide: bool) -> Restarts:
        """
        Args:
            is_wide: there is room for as many workers as there may ever be.
        """
        changes_cores = is_wide and Random(seed + 3).random() < _CORES_CHANGE_SHARE
        only_stages = changes_cores and Random(seed + 6).random() < _ONLY_STAGES_SHARE
        return cls(
            changes_cores, only_stages, is_wide and not only_stages and Random(seed + 7).random() < _STORES_SHARE
        )

    @property
    def left_out(self) -> frozenset[str]:
        """Names of actors that have no part in it."""
        return frozenset(["p", "q", "n", "m", "s", "guest"] if self.only_stages else ["u"])

    @property
    def power_loss_weight(self) -> int:
        return 16 if self.changes_cores else 4

    @property
    def clean_restart_weight(self) -> int:
        return 24 if self.only_stages else 0

    @property
    def store_weight(self) -> int:
        return 50 if self.has_stores else 0

    def cores_after_a_store(self, random: Random) -> int:
        """Number of workers of the node that follows an embedded store."""
        return random.randint(1, CORES_MAX) if self.has_stores else CORES

    @property
    def fault_share(self) -> float:
        """Share of all steps that are faults: low with only stages, as a transaction takes many steps between two starts."""
        return 0.005 if self.only_stages else 0.01

    def cores(self, random: Random) -> int:
        """Number of workers after the next start."""
        return random.randint(1, CORES_MAX) if self.changes_cores else CORES

    def start_kills(self, random: Random) -> StartKills:
        return StartKills(random, _START_KILL_SHARE if self.only_stages else 0.0)


class StartKills:
    """Says at which call a worker dies that is being started. `share`: of all starts, 0 from the calm on."""

    def __init__(self, random: Random, share: float) -> None:
        self.share = share
        self._random = random

    def call(self) -> int:
        """Counted from 1; 0: this one lives."""
        if not self.share or self._random.random() >= self.share:
            return 0
        return self._random.randint(1, _START_CALLS_MAX)


def restart_cleanly(machine: Machine, step: Callable[[], None], cores: int) -> None:
    """Tell the node to stop, as `quiver drain --timeout 0` does, and start it with so many workers. Who does not end in time is killed."""
    machine.request_stop()
    for _ in range(_STOP_ROUNDS_MAX):
        step()
        if machine.has_stopped:
            machine.counts["clean_stops"] += 1
            break
    machine.lose_power(CrashMode.KEEP, 0, cores)


def check_no_log_is_missed(engines: Iterable[Engine], failing_cores: set[int]) -> None:
    """Nobody takes logs away in a simulation: a start that misses one tells of a loss that is none.

    Args:
        failing_cores: whose disks have failed a call.
    """
    for engine in engines:
        missed = [note for note in engine.recovery_notes if "is gone" in note]
        if missed and engine.core not in failing_cores:
            raise Violation(f"core_{engine.core} of {engine.topic} says at its start: {missed}")
