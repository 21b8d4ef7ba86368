"""Idempotent producers of a simulated run: they number their bundles, and push again what they are not sure of. What a power loss has
taken out of the middle of a log they can push again, too.

Each has stored its first bundles on another core, when the node had another number of workers: one that is adopted, one that is retired.
The engine must know of them before it stores anything.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgspec

from quiver_actors.base.homes import ProducerHomes
from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol.messages import AckRun, KeyedPush
from quiver_actors.errors import ProducerUnsettled
from quiver_actors.store.engine import Engine
from quiver_actors.store.staged.keys import KeyRun, Windows, with_key
from tests.disks.simulated import SimDisk
from tests.sim.bundles import Producer, Slots, any_bundle
from tests.sim.ledger import NEVER, Key, Ledger, PushedBundle

if TYPE_CHECKING:
    from quiver_actors.store.segment.placement import StreamSchema
    from tests.sim.oracle import Oracle, Survey
    from tests.sim.world import World

PRODUCERS = ("paula", "quentin")
_AGAIN_MAX = 5
HOMES = ProducerHomes(cores=1, generation=7)
ELSEWHERE = {"paula": KeyRun(0, 3, 5, 2, 40, core=1), "quentin": KeyRun(0, 2, 9, 0, 70, core=2)}
"""Keys that producers have stored on other cores."""
_DIRECTORIES = {1: "data/topic/core_1", 2: "data/topic/retired/core_2"}


def put_elsewhere(disk: SimDisk) -> None:
    """The files of the other cores, durable; one that is retired has none."""
    disk.make_directory("data/topic/retired/core_3")
    for name, run in ELSEWHERE.items():
        windows = Windows()
        windows.recovered_in = HOMES.generation if run.core == 1 else 0
        windows.add(name, run._replace(core=-1))
        directory = _DIRECTORIES[run.core]
        disk.make_directory(directory)
        file = disk.create(f"{directory}/quiver.producers")
        file.write([windows.encode()], 0)
        file.fsync()
        file.close()
        disk.sync_directory(directory)


def lay_out_keyed(
    producer: Producer, name: str, first: int, bundles: list[Slots]
) -> tuple[memoryview, KeyedPush, dict[int, StreamSchema]]:
    """Bundles under the numbers from `first` on."""
    memory, push, schemas = producer.lay_out(bundles)
    return memory, KeyedPush(**msgspec.structs.asdict(push), producer=name, first_number=first), schemas


class KeyedProducers:
    """Owner: one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pushed = {name: [_stored_elsewhere(name, n) for n in range(ELSEWHERE[name].end)] for name in PRODUCERS}
        """Pushes of each producer, by number."""
        self._unsure: dict[str, int] = {}
        """The first number that a crash may have taken."""

    def push(self) -> None:
        """One push, of bundles that are new, or not, or both."""
        random, name = self._world.random, self._world.random.choice(PRODUCERS)
        pushed = self._pushed[name]
        following = len(pushed)
        back = random.randint(0, min(_AGAIN_MAX, following)) if random.random() < 0.3 else 0
        first = min(self._unsure.get(name, following), following - back)
        numbers = range(first, first + random.choice((1, 1, 2, 5)))
        bundles = [pushed[number] if number < following else self._new(name, number) for number in numbers]
        memory, push, schemas = lay_out_keyed(self._world.producer, name, first, bundles)
        if not self._world.engine.intake.can_stage(len(memory)):
            return
        try:
            runs = self._world.engine.intake.stage(memory, push, schemas)
        except ProducerUnsettled:
            return
        pushed[first:] = bundles + pushed[first + len(bundles) :]
        self._note(name, first, bundles, runs)
        if self._unsure.get(name, numbers.stop) < numbers.stop:
            self._unsure[name] = numbers.stop

    def _new(self, name: str, number: int) -> Slots:
        return self._world.next_bundle() | {ENVELOPE_SLOT: with_key(None, name, number)}

    def _note(self, name: str, first: int, bundles: list[Slots], runs: list[AckRun]) -> None:
        ledger, number = self._world.ledger, first
        for run in runs:
            for place in range(run.count):
                id_ = (run.segment_seq, run.bundle_index + place)
                if number < ELSEWHERE[name].end:
                    _check_elsewhere(name, number, run)
                    number += 1
                    continue
                known = ledger.keys.setdefault((name, number), [])
                assert run.core < 0, f"{name}/{number} is said to be on core {run.core}"
                if run.is_duplicate:
                    assert known[-1:] == [id_], f"{name}/{number} is said to be {id_}, it is {known[-1:]}"
                else:
                    there = [earlier for earlier in known if ledger.bundles[earlier].lost_at == NEVER]
                    assert not there, f"{name}/{number} is stored as {id_}, it was stored as {there} before"
                    known.append(id_)
                    self._world.note_pushed(id_, run.sequence + place, bundles[number - first])
                number += 1
        assert number == first + len(bundles)

    def accept(self, survey: Survey) -> None:
        """After a crash: what is not there is pushed again before anything new is."""
        self._unsure.clear()
        for name, pushed in self._pushed.items():
            stored = [number for number in range(len(pushed)) if self._is_stored(survey, (name, number))]
            lost = set(range(len(pushed))) - set(stored)
            if lost:
                self._unsure[name] = min(lost)

    def _is_stored(self, survey: Survey, key: Key) -> bool:
        is_elsewhere = key[1] < ELSEWHERE[key[0]].end
        return is_elsewhere or _is_there(self._world.ledger, survey, key, self._world.calls)


def _stored_elsewhere(name: str, number: int) -> Slots:
    return any_bundle((1 << 40) + number, Random(f"{name} {number}"), big_share=0.0) | {
        ENVELOPE_SLOT: with_key(None, name, number)
    }


def _check_elsewhere(name: str, number: int, run: AckRun) -> None:
    where = ELSEWHERE[name]
    is_right = run.is_duplicate and (run.core, run.segment_seq) == (where.core, where.segment_seq)
    assert is_right, f"{name}/{number} is stored on core {where.core}, the answer is {run}"


def check_once(ledger: Ledger, survey: Survey) -> None:
    """No bundle with a key is there twice."""
    for key, ids in ledger.keys.items():
        held = [id_ for id_ in ids if survey.holds(id_)]
        assert len(held) <= 1, f"{key} is stored as {held}"


def check_producers_go_on(oracle: Oracle, engine: Engine, survey: Survey, at: int) -> list[PushedBundle]:
    """Every producer can push again what was not acknowledged to it. Returns the bundles that had to be stored for it."""
    stored: list[PushedBundle] = []
    producer = Producer(engine.topic)
    for name in PRODUCERS:
        known = _known(oracle.ledger, name, at)
        unsure = [number for number, bundle in known.items() if not bundle.durable_at <= at < bundle.lost_at]
        if not unsure:
            continue
        numbers = [number for number in known if number >= unsure[0]]
        memory, push, schemas = lay_out_keyed(producer, name, numbers[0], [known[n].slots for n in numbers])
        oracle.make_room(engine, len(memory))
        number = numbers[0]
        for run in _staged(oracle, engine, memory, push, schemas):
            for place in range(run.count):
                id_ = (run.segment_seq, run.bundle_index + place)
                if run.is_duplicate:
                    there = survey.holds(id_) or oracle.ledger.may_be_deleted(id_[0], at)
                    assert there, f"{name}/{number} is said to be {id_}, and is not"
                else:
                    stored.append(PushedBundle(id_, run.sequence + place, known[number].slots, 0, at))
                number += 1
        engine.write()
    return stored


def _staged(
    oracle: Oracle, engine: Engine, memory: memoryview, push: KeyedPush, schemas: dict[int, StreamSchema]
) -> list[AckRun]:
    """What a producer that may have to wait once gets."""
    try:
        return engine.intake.stage(memory, push, schemas)
    except ProducerUnsettled:
        oracle.settle(engine)
        oracle.make_room(engine, len(memory))
        return engine.intake.stage(memory, push, schemas)


def _is_there(ledger: Ledger, survey: Survey, key: Key, at: int) -> bool:
    """It is stored, or was and has been deleted since. What a crash before that took was no part of what was deleted."""
    return any(
        survey.holds(id_) or (ledger.bundles[id_].lost_at >= at and ledger.may_be_deleted(id_[0], at))
        for id_ in ledger.keys[key]
    )


def _known(ledger: Ledger, name: str, at: int) -> dict[int, PushedBundle]:
    """What a producer has pushed by then, by number: its last try."""
    found = {}
    for (producer, number), ids in ledger.keys.items():
        tried = [ledger.bundles[id_] for id_ in ids if ledger.bundles[id_].staged_at <= at]
        if producer == name and tried:
            found[number] = tried[-1]
    return dict(sorted(found.items()))
