"""A drop of prepared bundles and the commit of their transaction, one against the other at each step of the drop, with a kill of the worker
at each: what was committed is published, and what was dropped can be committed by nobody."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.errors import TransactionAborted, TransactionLost
from quiver_actors.node.worker.budgets import Budget
from quiver_actors.node.worker.connection import Connection
from quiver_actors.node.worker.peer import Peer
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.stage_requests import StageRequests
from quiver_actors.node.worker.staging import Staging
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.transactions import Decisions, Token
from tests.support.stage_driver import StageDriver

STEPS = ("before", "asked", "answered", "dropped", "settled")
NEVER = "never"


class Worker:
    """The part of a worker that handles stages, whose thread for decision logs stands still until it is told to go on."""

    def __init__(self, root: Path, session: Session) -> None:
        (root / "data").mkdir()
        self._disk = PosixDisk(str(root / "data"))
        self.driver = StageDriver(self._disk)
        self.log = Decisions(str(root / "decisions"))
        self._session = session
        self._asked: list[tuple[Any, Callable[[], None]]] = []
        self._answers: list[Callable[[], None]] = []
        self._start()

    def _start(self) -> None:
        self._staging = Staging(
            self.driver.engine, touch=lambda: None, closed_by=lambda: None, ask=lambda *_: None, own_log="decisions"
        )
        self._asked, self._answers = [], []
        requests = StageRequests(
            lambda topic, session: self._staging, self.log.location, lambda job, done: self._asked.append((job, done))
        )
        self._handlers = requests.handlers()

    def kill(self) -> None:
        """The worker is killed and started again: what it was about to do is forgotten."""
        self.driver.restart()
        self.driver.settle()
        self._start()

    def close(self) -> None:
        self.driver.engine.close()
        self._disk.close()

    def ask(self, message: m.DropStages | m.PublishStages) -> None:
        self._handlers[type(message)](self._session, message, 0)

    def answer(self) -> None:
        """The decision logs answer."""
        for job, done in self._asked:
            job.run()
            self._answers.append(done)
        self._asked = []

    def go_on(self) -> None:
        """The loop takes the answers."""
        answers, self._answers = self._answers, []
        for done in answers:
            done()

    def token(self, number: int) -> Token:
        incarnation = self.driver.engine.incarnation.hex()
        return Token("t", 0, 0, 0, "node", "default", 0, incarnation, number, 1, 5, 640, 0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    near, far = socket.socketpair()
    budget: Budget[Session] = Budget(is_guest=False, now_ns=0)
    session = Session(Connection(near, frame_bytes_max=4096), Peer(1, 2, 3), 0, set(), budget)
    worker = Worker(tmp_path, session)
    yield worker
    worker.close()
    session.close()
    far.close()


def committed(worker: Worker, tokens: list[Token]) -> bool:
    """Commit from elsewhere, as a driver does. Returns whether the transaction is committed."""
    try:
        return worker.log.commit("t", 0, tokens).is_commit
    except TransactionAborted:
        return False


def interleaved(
    worker: Worker, message: m.DropStages | m.PublishStages, at: dict[str, list[Callable[[], None]]]
) -> None:
    """Carry a message out, and between its steps what is to be done there."""
    acts: dict[str, Callable[[], None]] = {
        "before": lambda: None,
        "asked": lambda: worker.ask(message),
        "answered": worker.answer,
        "dropped": worker.go_on,
        "settled": worker.driver.settle,
    }
    for step in STEPS:
        acts[step]()
        for act in at.get(step, []):
            act()


@pytest.mark.parametrize("killed_at", [NEVER, *STEPS])
@pytest.mark.parametrize("committed_at", STEPS)
def test_of_a_drop_and_a_commit_one_comes_to_be(worker: Worker, committed_at: str, killed_at: str) -> None:
    number = worker.driver.prepared(7)
    tokens, outcomes = [worker.token(number)], []
    drop = m.DropStages(1, "default", tokens[0].incarnation, [number])
    at: dict[str, list[Callable[[], None]]] = {committed_at: [lambda: outcomes.append(committed(worker, tokens))]}
    at.setdefault(killed_at, []).append(worker.kill)
    interleaved(worker, drop, at)
    interleaved(worker, drop, {})  # a client whose worker was killed asks again
    worker.kill()
    if outcomes == [True]:
        worker.driver.publish(number)
        worker.driver.engine.registrations.register("s", "earliest")
        assert worker.driver.claim_numbers("s") == [7]
    else:
        with pytest.raises(TransactionLost):
            worker.driver.publish(number)
        assert not list(worker.driver.engine.stages)
        assert not committed(worker, tokens)


@pytest.mark.parametrize("committed_at", STEPS)
@pytest.mark.parametrize("kind", ["publish", "cleanup"])
def test_what_only_tidies_up_behind_a_decision_decides_nothing(worker: Worker, committed_at: str, kind: str) -> None:
    """A publish that drops the others, and a drop of what lost: an undecided stage stays, and may still be committed."""
    number, rival = worker.driver.prepared(7), worker.driver.prepared(8)
    incarnation = worker.token(number).incarnation
    message: m.DropStages | m.PublishStages = m.DropStages(1, "default", incarnation, [rival], only_decided=True)
    if kind == "publish":
        message = m.PublishStages(1, "default", "t", incarnation, [number], drop_others=True)
    tokens = [worker.token(number), worker.token(rival)]
    interleaved(
        worker, message, {committed_at: [lambda: None if committed(worker, tokens) else pytest.fail("aborted")]}
    )
    worker.driver.publish(*(each.number for each in tokens))
    worker.driver.engine.registrations.register("s", "earliest")
    assert sorted(worker.driver.claim_numbers("s")) == [7, 8]


def test_what_a_decision_was_made_without_is_dropped_by_what_tidies_up(worker: Worker) -> None:
    number, rival = worker.driver.prepared(7), worker.driver.prepared(8)
    assert committed(worker, [worker.token(number)])
    interleaved(worker, m.DropStages(1, "default", worker.token(rival).incarnation, [rival], only_decided=True), {})
    assert [stage.number for stage in worker.driver.engine.stages] == [number]
