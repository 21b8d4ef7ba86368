"""The transactions of a simulated run: stages are begun, filled, prepared, decided, published, dropped, and left until their time is over.

Every operation writes down in the ledger what is wanted from then on; `observe` writes down what the engine has said.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from quiver_actors.base.units import KIB, MILLISECOND_NS
from quiver_actors.errors import StageUnreadable, TransactionAborted
from quiver_actors.store.engine.events import Event, StageDropped, StagePrepared, StagesPublished
from quiver_actors.store.engine.stages import Stages
from quiver_actors.store.staged import stage as stage_sizes
from quiver_actors.store.staged.records import StageOrder
from quiver_actors.store.staged.states import StageState
from tests.sim.ledger import NEVER, BundleId, PushedBundle
from tests.sim.oracle import Survey
from tests.sim.stage_ledger import StagedBundle, StageLife

if TYPE_CHECKING:
    from tests.sim.world import World

# Parts shall grow in runs as small as these.
stage_sizes.FIRST_CAPACITY_BYTES = 4 * KIB

_TTL_NS = 2_000 * MILLISECOND_NS
_OPEN_MAX = 3
_TRANSACTIONS = 2


class Staging:
    """Owner: one world. An operation that finds nothing to do does nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random: Random = world.random
        self._owners: dict[int, object] = {}
        self._partition = 0
        self.has_spoiled = False
        """The disk has cost a stage."""
        self.ledger = world.ledger.stages
        self.operations = (
            (self._begin, 8),
            (self._push, 24),
            (self._prepare, 10),
            (self._publish, 10),
            (self._drop, 2),
            (self._lose_connection, 1),
            (self._expire, 2),
        )

    @property
    def _stages(self) -> Stages:
        return self._world.engine.stages

    @property
    def is_publishing(self) -> bool:
        """Stages have numbers and are not visible: where a new subscriber begins is open for them."""
        return any(life.publish_wanted != NEVER and life.published == NEVER for life in self.ledger.live())

    # --- operations -------------------------------------------------------------------------------------------------------

    def _open(self) -> list[int]:
        return [stage.number for stage in self._stages if stage.state is StageState.OPEN]

    def _begin(self) -> None:
        if len(self._open()) >= _OPEN_MAX or not self._world.takes_bundles:
            return
        txn_id, owner = f"txn-{self._random.randrange(_TRANSACTIONS)}", object()
        self._partition += 1
        order = StageOrder(txn_id, 0, self._partition, self._random.randrange(2), "", _TTL_NS)
        number = self._stages.begin(order, owner)
        assert self.ledger.find(number) is None, f"number {number} of a stage is used twice"
        self._owners[number] = owner
        self.ledger.lives.append(StageLife(number, txn_id, self._world.calls))

    def _push(self) -> None:
        found = self._open()
        if not found:
            return
        number = self._random.choice(found)
        slots = self._world.next_bundles()
        memory, push, schemas = self._world.producer.lay_out(slots)
        try:
            stage = self._stages.get(number, self._owners[number])
        except TransactionAborted:
            assert self._world.has_faults
            return
        if not self._stages.can_stage(stage, len(memory)):
            self._world.jobs.let_run()
            return
        self._stages.stage(stage, memory, push, schemas)
        self._stages.write(stage)
        life = self._life(number)
        life.bundles += [StagedBundle(bundle, self._world.clock.now_ns) for bundle in slots]

    def _prepare(self) -> None:
        filled = [number for number in self._open() if self._life(number).bundles]
        if filled:
            number = self._random.choice(filled)
            self._stages.prepare(self._stages.get(number, self._owners[number]))
            self._life(number).prepare_wanted = self._world.calls

    def _publish(self) -> None:
        """Some of the prepared stages of one transaction, and what was published before once more."""
        self.sync()
        waiting = [life for life in self.ledger.live() if life.is_undecided]
        if not waiting:
            return
        txn_id = self._random.choice(waiting).txn_id
        ours = [life for life in waiting if life.txn_id == txn_id]
        chosen = self._random.sample(ours, self._random.randint(1, len(ours)))
        before = [life for life in self.ledger.live() if life.txn_id == txn_id and life.published != NEVER]
        again = self._random.sample(before, min(len(before), 1))
        self._decide(txn_id, [*chosen, *again], drop_others=self._random.random() < 0.3)

    def _decide(self, txn_id: str, chosen: Sequence[StageLife], *, drop_others: bool) -> None:
        now, numbers = self._world.calls, [life.number for life in chosen]
        try:
            ticket = self._stages.publish(txn_id, self._world.engine.incarnation, numbers, drop_others=drop_others)
        except StageUnreadable:
            return  # it is read again meanwhile
        for life in chosen:
            if life.publish_wanted == NEVER:
                life.publish_wanted, life.publish = now, (self._world.starts, ticket)
        self._note_drops()
        self.note_places()

    def _drop(self) -> None:
        waiting = [life for life in self.ledger.live() if life.is_undecided]
        if waiting:
            self._drop_life(self._random.choice(waiting), "aborted")

    def _drop_life(self, life: StageLife, reason: str) -> None:
        self._stages.drop([life.number], self._world.engine.incarnation, reason)
        self._note_drops()

    def _lose_connection(self) -> None:
        if self._owners:
            self._stages.release(self._random.choice(list(self._owners.values())))
            self._note_drops()

    def _expire(self) -> None:
        """The time of prepared stages is over: the decision log says what becomes of them, or cannot be reached."""
        self._world.clock.now_ns += _TTL_NS
        for stage in self._stages.take_expired():
            life = self._life(stage.number)
            decision = self._random.choice(("commit", "abort", "unreachable"))
            if decision == "commit":
                self._decide(life.txn_id, [life], drop_others=False)
            elif decision == "abort":
                self._drop_life(life, "its time is over")

    def _life(self, number: int) -> StageLife:
        life = self.ledger.find(number)
        assert life is not None, f"the engine has a stage {number} that nobody began"
        return life

    # --- what is seen -----------------------------------------------------------------------------------------------------

    def note_places(self) -> None:
        """Write down where stages become visible as soon as they have their numbers: no call of the disk was made with them yet."""
        placed = {place.number for place in self._stages.table.publishes.places}
        for stage in self._stages:
            life = self.ledger.find(stage.number)
            if stage.number not in placed or life is None:
                continue
            ids = [(part.segment_seq, index) for part in stage.parts for index in range(part.builder.bundle_count)]
            first = [part.identity.first_sequence for part in stage.parts for _ in range(part.builder.bundle_count)]
            if ids in life.placements:
                continue
            assert len(ids) == len(life.bundles), (
                f"stage {stage.number} has {len(ids)} bundles, not {len(life.bundles)}"
            )
            life.placements.append(ids)
            for id_, sequence, bundle in zip(ids, first, life.bundles, strict=True):
                self._add_bundle(id_, sequence + id_[1], bundle)

    def _add_bundle(self, id_: BundleId, sequence: int, bundle: StagedBundle) -> None:
        bundles = self._world.ledger.bundles
        assert id_ not in bundles, f"{id_} is used twice"
        bundles[id_] = PushedBundle(id_, sequence, bundle.slots, bundle.time_ns, self._world.calls, is_staged=True)

    def observe(self, event: Event) -> None:
        if isinstance(event, StagePrepared):
            self._life(event.number).prepared = self._world.calls
        elif isinstance(event, StageDropped):
            self._note_dropped(event.number, event.reason)
        elif isinstance(event, StagesPublished):
            for life in self.ledger.live():
                if life.publish == (self._world.starts, event.ticket):
                    self._note_published(life)

    def _note_dropped(self, number: int, reason: str) -> None:
        life = self._life(number)
        self.has_spoiled = self.has_spoiled or "simulated" in reason
        life.drop_wanted, life.dropped = min(life.drop_wanted, self._world.calls), self._world.calls
        if life.prepare_wanted == NEVER:
            # Nothing is remembered of it: its number may be given away again by a later start.
            life.until = self._world.calls

    def _note_published(self, life: StageLife) -> None:
        life.published = self._world.calls
        for id_ in life.placements[-1]:
            self._world.ledger.bundles[id_].durable_at = self._world.calls

    def _note_drops(self) -> None:
        """Note each stage that is being dropped, also one that the engine drops by itself: the loser of two, or one whose disk fails."""
        for stage in self._stages:
            life = self._life(stage.number)
            if stage.state is StageState.DROPPING:
                life.drop_wanted = min(life.drop_wanted, self._world.calls)

    def sync(self) -> None:
        """Before the process ends: with faults the engine has dropped what could not be written, or read when it was opened."""
        self._note_drops()
        there = {stage.number for stage in self._stages}
        for life in self.ledger.live() if self._world.has_faults else ():
            if life.prepare_wanted != NEVER and life.published == NEVER and life.number not in there:
                life.drop_wanted = min(life.drop_wanted, self._world.calls)

    def accept(self, survey: Survey) -> None:
        """After a crash."""
        self._owners.clear()
        self.ledger.accept(self._world.oracle.seen(survey, self._world.calls), self._world.calls)
