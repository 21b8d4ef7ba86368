"""Windows of one producer that several cores hold become one; and no place stores anything before it knows them."""

from __future__ import annotations

import errno

import pytest

from quiver_actors.base.homes import ProducerHomes
from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol.messages import AckRun, KeyedPush
from quiver_actors.errors import ProducerUnsettled, SequenceGap, SequenceTooOld
from quiver_actors.store.engine import Engine
from quiver_actors.store.staged.carried_keys import carry
from quiver_actors.store.staged.keys import KeyRun, Windows, decode_windows, with_key
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch


def windows(*runs: KeyRun, floor: int | None = None, is_open: bool = False) -> Windows:
    made = Windows()
    for run in runs:
        made.add("p", run, floor)
    if is_open:
        made.leave_open("p")
    return made


def carried(own: Windows, *others: Windows) -> Windows:
    """Return the windows that result when `own` is merged with those of cores 1, 2, ..."""
    return decode_windows(carry(own, list(enumerate(others, 1)), lambda _: True, 5).encode())


OLD, NEW = KeyRun(0, 10, 3, 0, 100), KeyRun(10, 10, 1, 4, 30)


def test_windows_that_touch_become_one() -> None:
    both = carried(windows(OLD), windows(NEW))
    assert both.stored("p", 0, 20) == [OLD, NEW._replace(core=1)]
    assert both.stored("p", 20, 1) == []
    with pytest.raises(SequenceGap):
        both.stored("p", 21, 1)
    assert both.settled_in == 5


def test_the_place_may_know_nothing_or_be_the_newer_one() -> None:
    assert carried(Windows(), windows(OLD)).stored("p", 5, 5) == [KeyRun(5, 5, 3, 5, 105, 1)]
    assert carried(windows(NEW), windows(OLD)).stored("p", 9, 2) == [
        KeyRun(9, 1, 3, 9, 109, 1),
        KeyRun(10, 1, 1, 4, 30),
    ]


def test_what_was_carried_before_is_known_once_and_keeps_its_core() -> None:
    first = carried(windows(NEW), windows(OLD))
    second = carry(Windows(), [(0, first), (1, windows(OLD))], lambda _: True, 6)
    assert second.stored("p", 0, 20) == [OLD._replace(core=1), NEW._replace(core=0)]


def test_below_a_gap_between_windows_nothing_can_be_told() -> None:
    far = KeyRun(50, 2, 1, 0, 0)
    both = carried(windows(OLD), windows(far))
    with pytest.raises(SequenceTooOld):
        both.stored("p", 20, 1)
    assert both.stored("p", 50, 3) == [far._replace(core=1)]


def test_an_end_that_nobody_knows_stays_unknown_and_what_is_below_a_gap_is_too_old() -> None:
    holed = windows(KeyRun(4, 2, 0, 0, 0), KeyRun(8, 2, 0, 4, 4), floor=0)
    both = carried(windows(OLD._replace(bundles=2), is_open=True), holed)
    with pytest.raises(SequenceTooOld):
        both.stored("p", 6, 1)
    assert both.stored("p", 15, 1) == []


def test_producers_of_other_places_are_left_where_they_are() -> None:
    other = windows(OLD)
    other.add("q", NEW)
    made = carry(Windows(), [(1, other)], lambda producer: producer == "q", 5)
    assert [name for name, _ in made.items()] == ["q"]


# --- engines -----------------------------------------------------------------------------------------------------------------


class Cores:
    """The cores of one topic on one disk. `start` opens so many of them; a core that is not there any more is adopted."""

    def __init__(self) -> None:
        self.disk = FaultyDisk(SimDisk())
        self.generation = 0
        self.drivers: dict[int, EngineDriver] = {}
        self.cores = 0

    def homes(self) -> ProducerHomes:
        return ProducerHomes(self.cores, self.generation)

    def start(self, cores: int, *opened: int) -> None:
        """Start the node like after a kill, with the engines `opened`; empty: all that there are."""
        if self.cores and cores != self.cores:
            self.generation += 1
        there = {*range(cores), *range(self.cores)}
        self.cores = cores
        inner = self.disk.inner
        assert isinstance(inner, SimDisk)
        self.disk = FaultyDisk(inner.crash(CrashMode.KEEP))
        self.drivers = {}
        for core in opened or sorted(there | {0, 1, 2} & self._known()):
            self.open(core)

    def _known(self) -> set[int]:
        return {int(name[5:]) for name in self.disk.list_directory("default") if name.startswith("core_")}

    def open(self, core: int) -> None:
        self.drivers[core] = _HomedDriver(self.disk, core, self.homes())

    def push(self, name: str, first: int, count: int) -> list[AckRun]:
        """Push to the producer's place, after the windows that it needs were carried there."""
        driver = self.drivers[self.homes().home_of(name)]
        try:
            return push(driver, name, first, count)
        except ProducerUnsettled:
            driver.settle()
            return push(driver, name, first, count)


class _HomedDriver(EngineDriver):
    def __init__(self, disk: FaultyDisk, core: int, homes: ProducerHomes) -> None:
        self._core, self._homes = core, homes
        super().__init__(disk, directory=f"default/core_{core}")

    def reopen(self) -> Engine:
        self.engine = Engine.open(self.disk, self.directory, self.settings, self._core, self.clock, self._homes)
        return self.engine


def push(driver: EngineDriver, name: str, first: int, count: int) -> list[AckRun]:
    bundles = [{0: numbered_batch(n), ENVELOPE_SLOT: with_key(None, name, n)} for n in range(first, first + count)]
    memory, plain, schemas = driver.layout(bundles)
    keyed = KeyedPush(
        **{name: getattr(plain, name) for name in plain.__struct_fields__}, producer=name, first_number=first
    )
    if not driver.engine.intake.can_stage(len(memory)):
        driver.run_background()
    runs = driver.engine.intake.stage(memory, keyed, schemas)
    driver.events += driver.engine.write()
    driver.commit()
    return runs


def moving_producer() -> str:
    """One whose place is another one on two workers than on three."""
    two, three = ProducerHomes(2), ProducerHomes(3)
    return next(name for name in map(str, range(100)) if two.home_of(name) == 1 and three.home_of(name) == 2)


def test_numbers_go_on_across_changes_also_from_logs_that_were_never_sealed() -> None:
    cores, name = Cores(), moving_producer()
    cores.start(2)
    assert [run.is_duplicate for run in cores.push(name, 0, 10)] == [False]
    cores.start(3)
    assert [(run.core, run.count, run.is_duplicate) for run in cores.push(name, 5, 15)] == [
        (1, 5, True),
        (-1, 10, False),
    ]
    cores.start(2)
    assert [(run.core, run.count, run.is_duplicate) for run in cores.push(name, 0, 21)] == [
        (-1, 10, True),
        (2, 10, True),
        (-1, 1, False),
    ]


def test_nothing_is_stored_before_every_directory_was_recovered() -> None:
    cores, name = Cores(), moving_producer()
    cores.start(2)
    cores.push(name, 0, 10)
    cores.start(3, 0, 2)
    for _ in range(3):
        with pytest.raises(ProducerUnsettled):
            cores.push(name, 10, 1)
    with pytest.raises(ProducerUnsettled, match="default/core_1 was not recovered"):
        cores.push(name, 10, 1)
    cores.open(1)
    with pytest.raises(ProducerUnsettled, match="pushes to worker 2 of 3"):
        push(cores.drivers[1], name, 10, 1)
    assert [run.is_duplicate for run in cores.push(name, 9, 2)] == [True, False]


def test_a_worker_that_comes_back_in_the_same_generation_waits_for_nobody() -> None:
    cores, name = Cores(), moving_producer()
    cores.start(2)
    cores.push(name, 0, 10)
    cores.start(3)
    cores.push(name, 10, 1)
    cores.start(3, 2)
    assert [run.core for run in cores.push(name, 0, 12)] == [1, -1, -1]


def test_an_error_of_the_disk_keeps_the_producer_waiting_and_fails_nobody() -> None:
    cores, name = Cores(), moving_producer()
    cores.start(2)
    cores.push(name, 0, 10)
    cores.start(3)
    cores.disk.fail("read", 1, errno.EIO, path_part="core_1/quiver.producers")
    with pytest.raises(ProducerUnsettled):
        cores.push(name, 10, 1)
    assert [run.is_duplicate for run in cores.push(name, 9, 2)] == [True, False]


@pytest.mark.parametrize("mode", [CrashMode.KEEP, CrashMode.DROP])
def test_a_crash_anywhere_in_the_move_leaves_neither_doubles_nor_gaps(mode: CrashMode) -> None:
    name = moving_producer()
    for point in range(1, 10_000):
        cores = Cores()
        cores.start(2)
        cores.push(name, 0, 10)
        cores.start(3)
        cores.disk.crash_at(cores.disk.mutating_count + point)
        is_cut_off = False
        try:
            cores.push(name, 8, 4)
        except SimulatedCrash:
            is_cut_off = True
        inner = cores.disk.inner
        assert isinstance(inner, SimDisk)
        cores.disk = FaultyDisk(inner.crash(mode, point))
        cores.start(3)
        runs = cores.push(name, 0, 12)
        assert sum(run.count for run in runs if run.is_duplicate) in ({10, 11, 12} if is_cut_off else {12})
        assert next(run.core for run in runs) == 1
        cores.start(2)
        assert all(run.is_duplicate for run in cores.push(name, 0, 12))
        if not is_cut_off:
            assert point > 5
            return
    raise AssertionError("it never came to its end")
