"""Somebody of the node's own user who drops staged bundles while their drivers commit: an operator with `quiver transactions drop`.

It looks which stages there are, decides against their transactions, and drops them whatever the decision log has answered: of a
transaction that was committed nothing may go. Or it drops them without a question, and the worker has to decide before it drops. The model
knows which were committed, and whoever is owed their bundles must get them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from quiver_actors.base.protocol.messages import DropStages, ListStages, StageList
from quiver_actors.client.calls import Call
from quiver_actors.client.channels import raise_refusals
from quiver_actors.client.exchange import Flow
from quiver_actors.errors import TransactionDecided
from tests.sim.node.actors import Place, Pushing, World
from tests.sim.node.clients import PATIENCE_SECONDS, Running, SimProducer, as_steps
from tests.sim.node.model import Outcome, Violation

_ASKED_SHARE = 0.5
"""How often it decides before it drops."""
_ABORTED_SHARE = 0.05
"""Looks at which it decides against a transaction that nobody commits yet."""


class _Stage(NamedTuple):
    core: int
    incarnation: str
    number: int
    txn_id: str


class DroppingActor(Pushing):
    """Drops stages, one after the other."""

    def __init__(self, name: str, world: World, place: Place) -> None:
        super().__init__(name, world, place)
        self._next: Callable[[Any], None] = self._listed
        self._wanted = _Stage(0, "", 0, "")

    def _begin(self) -> None:
        if self.world.random.random() < 0.1:
            self._next = self._listed
            self.running = Running(self.client.exchange, as_steps(_listing(self.client, self.place.topic)))

    def _listed(self, found: list[_Stage]) -> None:
        outcomes = self.place.model.transactions
        # The others would have no transaction left to commit.
        raced = [each for each in found if outcomes.get(each.txn_id) in (Outcome.ASKED, Outcome.COMMITTED)]
        wanted = raced or (found if self.world.random.random() < _ABORTED_SHARE else [])
        if wanted:
            self._wanted = self.world.random.choice(wanted)
            if self.world.random.random() < _ASKED_SHARE:
                self._decide(self._decided)
            else:
                self._drop(self._dropped_unasked)

    def _decide(self, then: Callable[[Any], None]) -> None:
        self._next = then
        self.running = self.client.decide(self._wanted.txn_id, None)

    def _drop(self, then: Callable[[Any], None]) -> None:
        self._next = then
        self.running = Running(self.client.exchange, as_steps(_dropping(self.client, self.place.topic, self._wanted)))

    def _decided(self, decision: Any) -> None:
        self._learned(decision)
        self._drop(self._dropped)

    def _learned(self, decision: Any) -> None:
        outcomes, txn_id = self.place.model.transactions, self._wanted.txn_id
        if not decision.is_commit:
            if outcomes.get(txn_id) is Outcome.COMMITTED:
                raise Violation(f"transaction {txn_id} was committed, and is aborted now")
            outcomes[txn_id] = Outcome.ABORTED

    def _dropped(self, _: object) -> None:
        self.world.machine.counts["stages_dropped"] += 1

    def _dropped_unasked(self, _: object) -> None:
        self.world.machine.counts["stages_dropped_unasked"] += 1
        self._decide(self._learned)

    def _finish(self, running: Running[Any]) -> None:
        if running.error is None:
            self._next(running.result)
        elif isinstance(running.error, TransactionDecided):
            outcome = self.place.model.transactions.get(self._wanted.txn_id)
            if outcome is Outcome.ABORTED:
                raise Violation(f"{self._wanted} is kept as committed, and was aborted")
            self.world.machine.counts["drops_refused"] += 1


def _listing(client: SimProducer, topic: str) -> Flow[list[_Stage]]:
    calls = yield from client.channels.asking_all(lambda _: Call(lambda tag: ListStages(tag, topic)), PATIENCE_SECONDS)
    return [
        _Stage(core, call.answer.incarnation, info.number, info.txn_id)
        for core, call in sorted(calls.items())
        if isinstance(call.answer, StageList)
        for info in call.answer.stages
    ]


def _dropping(client: SimProducer, topic: str, stage: _Stage) -> Flow[None]:
    call = Call(lambda tag: DropStages(tag, topic, stage.incarnation, [stage.number], "dropped by an operator"))
    yield from client.channels.completing({stage.core: call}, PATIENCE_SECONDS)
    raise_refusals([call])
