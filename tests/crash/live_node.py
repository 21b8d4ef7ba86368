"""A real node with producers and subscribers, each in a process of its own, that a campaign does things to.

Producers push for ever, subscribers take everything, all write journals, and the `Book` says whether they were treated as promised.
Whoever ends unasked fails the campaign. The process of the campaign has one thread and has imported everything, so that it can fork
producers and subscribers instead of starting them; all of them die with it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn, Self

from quiver_actors.supervisor import control
from quiver_actors.supervisor.spawn import die_with
from tests.crash.book import Book
from tests.crash.bundles import TOPIC, bundle_of
from tests.crash.points import Points
from tests.crash.producer import produce
from tests.crash.subscriber import consume, register
from tests.integration.node_process import ROOT, Directories

SUPERVISOR, WORKER, PRODUCER, SUBSCRIBER = "supervisor", "worker", "producer", "subscriber"
DEADLINE_SECONDS = 120.0
CONFIG = f"""
[topics.{TOPIC}.segment]
target_size = "1MiB"
max_open_duration = "200ms"
"""
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_READY = ("ready", "degraded")


class CampaignFailed(Exception):
    """The node or a client did what it must not; says what, with the end of their log."""


class LiveNode:
    """A real node with its producers and subscribers. A context manager: nothing is left running.

    Args:
        data: where the node keeps its data; None: beside everything else.
        sleepers: subscribers that are registered and never come, so that nothing is deleted.
        pause_seconds, push_timeout_seconds: of a producer.
        tolerated: codes of errors that clients may get, beside those that can be waited out.
        deaths_max: how often a worker may die in a minute before it is abandoned.
        copied_between: the data are a copy of another node's, taken between these two of its books.
    """

    def __init__(
        self,
        *,
        config: str = CONFIG,
        data: Path | None = None,
        cores: int = 2,
        producers: int = 3,
        subscribers: tuple[str, ...] = ("oracle",),
        sleepers: tuple[str, ...] = (),
        pause_seconds: float = 0.05,
        push_timeout_seconds: float = 60.0,
        tolerated: frozenset[str] = frozenset(),
        deaths_max: int = 1_000_000,
        copied_between: tuple[Book, Book] | None = None,
    ) -> None:
        self._cores = cores
        self._sleepers = sleepers
        self._deaths_max = deaths_max
        self._produce = functools.partial(produce, pause_seconds=pause_seconds, timeout_seconds=push_timeout_seconds)
        self.directories = Directories()
        self.data = data or self.directories.data
        self._config = self.directories.base / "quiver.toml"
        self._config.write_text(config)
        self._log = self.directories.base / "log"
        self._log_descriptor = os.open(self._log, _APPEND, 0o600)
        journals = self.directories.base / "journals"
        journals.mkdir()
        self.points = Points(self.directories.base / "points")
        self.book = Book(journals, producers, subscribers, tolerated)
        if copied_between is not None:
            self.book.inherit(*copied_between)
        self.producers = [f"{PRODUCER}-{number}" for number in range(producers)]
        self.subscribers = [f"{SUBSCRIBER}-{name}" for name in subscribers]
        self.pids: dict[str, int] = {}
        """Processes that are to run now, by name; the workers are the supervisor's."""
        self._campaign = os.getpid()
        bundle_of(0, 0)

    def __enter__(self) -> Self:
        try:
            self.start(SUPERVISOR)
            self.wait_ready()
            self._register()
            self.start(*self.subscribers, *self.producers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for name in list(self.pids):
            self.end(name, signal.SIGKILL)
        self.directories.remove()
        os.close(self._log_descriptor)

    # --- processes -------------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names:
            self.pids[name] = self._spawn_node() if name == SUPERVISOR else self._fork(name)

    def _register(self) -> None:
        """All subscribers before the first bundle, in a process of its own: this one must not have a client's threads."""
        names = [*self._sleepers, *(name.partition("-")[2] for name in self.subscribers)]
        if pid := os.fork():
            if self.wait_end(pid):
                raise self.failed("the subscribers cannot be registered")
            return
        self._live(SUBSCRIBER, lambda run_dir: register(run_dir, names))

    def _spawn_node(self) -> int:
        arguments = [self._config, self.data, self.directories.run, self._cores, self.directories.base / "points"]
        command = [sys.executable, "-m", "tests.crash.node", *map(str, arguments), str(self._deaths_max)]
        actions = [(os.POSIX_SPAWN_DUP2, self._log_descriptor, 1), (os.POSIX_SPAWN_DUP2, self._log_descriptor, 2)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return os.posix_spawn(sys.executable, command, environment, file_actions=actions)

    def _fork(self, name: str) -> int:
        role, _, which = name.partition("-")
        first = self.book.next_number(int(which)) if role == PRODUCER else 0
        path = self.book.subscriber_journal(which) if role == SUBSCRIBER else self.book.producer_journal(int(which))
        # Opened here: a limit may leave the fork no descriptor from its first moment on.
        journal = os.open(path, _APPEND, 0o600)
        if pid := os.fork():
            os.close(journal)
            return pid
        self.points.take(role)
        if role == SUBSCRIBER:
            self._live(role, lambda run_dir: consume(run_dir, which, journal))
        return self._live(role, lambda run_dir: self._produce(run_dir, int(which), first, journal))

    def _live(self, role: str, life: Callable[[str], None]) -> NoReturn:
        """The whole life of a fork."""
        code = 1
        try:
            die_with(self._campaign)
            os.dup2(self._log_descriptor, 1)
            os.dup2(self._log_descriptor, 2)
            life(str(self.directories.run))
            code = 0
        except BaseException:  # noqa: BLE001 - told in the log; the campaign sees that it has ended
            os.write(2, f"{role}: {traceback.format_exc()}".encode())
        finally:
            os._exit(code)

    def end(self, name: str, number: signal.Signals) -> None:
        """Tell it, and wait until it, and with a supervisor all workers, are gone."""
        workers = self.worker_pids(ask=False) if name == SUPERVISOR else []
        pid = self.pids.pop(name)
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)
        self.wait_end(pid)
        self.wait_gone(workers)

    def wait_gone(self, pids: list[int]) -> None:
        """Wait until processes that are not children of this one are gone."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while alive := [pid for pid in pids if is_alive(pid)]:
            if time.monotonic() > deadline:
                raise self.failed(f"workers {alive} outlive what ended them")
            rest(0.01)

    def wait_end(self, pid: int) -> int:
        """Wait until a child of this process has ended, and take it away. Returns its exit code."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise self.failed(f"process {pid} does not end")
            rest(0.01)
        return os.waitstatus_to_exitcode(found[1])

    def worker_pids(self, *, ask: bool = True) -> list[int]:
        """Return the process ids of the serving workers, as the supervisor says; without asking it, of all processes that it has forked."""
        if not ask:
            with contextlib.suppress(FileNotFoundError):
                pid = self.pids.get(SUPERVISOR) or 0
                return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            return []
        with contextlib.suppress(Exception):
            reply = control.request(str(self.directories.run / control.SOCKET_NAME), control.Status())
            if isinstance(reply, control.NodeStatus):
                return [child.pid for child in reply.children if child.pid and child.state in _READY]
        return []

    # --- waiting ---------------------------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until every worker serves."""
        self.wait(lambda: len(self.worker_pids()) == self._cores, "the node does not become ready", pause_seconds=0.1)

    def progress(self, acknowledgements: int) -> None:
        """Wait until that many more bundles were acknowledged."""
        target = self.acknowledged() + acknowledgements
        self.wait(lambda: self.acknowledged() >= target, "producers make no progress")

    def acknowledged(self) -> int:
        self.book.update()
        return len(self.book.acknowledged)

    def wait(self, condition: Callable[[], bool], what: str, *, pause_seconds: float = 0.02) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise self.failed(what)
            rest(pause_seconds)

    def check(self) -> None:
        """Raises CampaignFailed: somebody ended unasked, or the promise is broken."""
        for name, pid in self.pids.items():
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                del self.pids[name]
                raise self.failed(f"{name} ended by itself with {self.wait_end(pid)}")
        if self.book.wrong:
            raise self.failed("; ".join(self.book.wrong[:5]))

    def settle(self) -> None:
        """Stop the producers, and wait until every subscriber has each acknowledged bundle or a notice of its loss."""
        self.stop_pushing()
        self.wait(lambda: not self.book.owed(), "subscribers do not get everything", pause_seconds=0.1)
        self.check()

    def stop_pushing(self) -> None:
        for name in self.producers:
            if name in self.pids:
                self.end(name, signal.SIGTERM)

    def failed(self, what: str) -> CampaignFailed:
        owed = self.book.owed()
        more = f"\nowed {len(owed)}: {owed[:5]}" if owed else ""
        return CampaignFailed(f"{what}{more}\nrefused {dict(self.book.refused)}\n{self.log()[-6000:]}")

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def rest(seconds: float) -> None:
    select.select([], [], [], seconds)


def is_alive(pid: int) -> bool:
    """Works for a process that is no child of this one, too; one that has ended and was not waited for is dead."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def tell(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
