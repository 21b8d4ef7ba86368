"""Idempotent producers: a bundle that is pushed again is not stored again, whatever crashes in between."""

from __future__ import annotations

from random import Random

import msgspec
import pyarrow as pa
import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.protocol.messages import AckRun, KeyedPush
from quiver_actors.base.units import KIB
from quiver_actors.errors import SequenceGap, SequenceTooOld, UsageError
from quiver_actors.store.staged.keys import (
    RUNS_MAX,
    RUNS_PER_PRODUCER,
    KeyRun,
    Windows,
    check_key,
    decode_windows,
    key_in,
    with_key,
)
from tests.disks.crashes import CrashMode
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings
from tests.unit.store.staged.test_stage_crashes import Recorder

SETTINGS = topic_settings(segment_target_size_bytes=64 * KIB, retention=RetentionSettings(min_free_bytes=0))


class KeyedDriver(EngineDriver):
    def restart(self) -> None:
        """Reopen the engine like after a kill."""
        self.engine.close()
        self.reopen()

    def push_keyed(self, first: int, count: int = 1, producer: str = "p", rows: int = 5) -> list[AckRun]:
        """Bundles whose number is their key; not yet synced."""
        bundles = [
            {0: numbered_batch(number, rows), 63: with_key(None, producer, number)}
            for number in range(first, first + count)
        ]
        memory, push, schemas = self.layout(bundles)
        keyed = KeyedPush(**msgspec.structs.asdict(push), producer=producer, first_number=first)
        if not self.engine.intake.can_stage(len(memory)):
            self.run_background()
        runs = self.engine.intake.stage(memory, keyed, schemas)
        self.events += self.engine.write()
        return runs

    def stored(self) -> list[int]:
        """Their numbers, in the order of delivery."""
        self.seal()
        readers = [(info, self.read(info.segment_seq)) for info in self.engine.segments()]
        bundles = [reader.bundle(index) for info, reader in readers for index in range(info.bundle_count)]
        return [bundle[0].column(0)[0].as_py() for bundle in bundles if bundle]  # an empty one was lost


@pytest.fixture
def driver() -> KeyedDriver:
    return KeyedDriver(OrderMonitor(SimDisk()), SETTINGS)


# --- windows ---------------------------------------------------------------------------------------------------------------------


def test_the_table_of_answers() -> None:
    windows = Windows()
    assert windows.stored("p", 7, 3) == [], "an unknown producer begins anywhere"
    windows.add("p", KeyRun(7, 3, 1, 0, 100))
    windows.add("p", KeyRun(10, 2, 1, 3, 103))
    assert windows.stored("p", 7, 5) == [KeyRun(7, 5, 1, 0, 100)], "what lies side by side is one run"
    assert windows.stored("p", 11, 5) == [KeyRun(11, 1, 1, 4, 104)]
    assert windows.stored("p", 12, 5) == []
    with pytest.raises(SequenceGap, match="the next one is 12"):
        windows.stored("p", 13, 1)
    with pytest.raises(SequenceTooOld, match="only 7 to 11"):
        windows.stored("p", 6, 1)
    windows.add("p", KeyRun(12, 1, 2, 0, 105))
    assert [run.segment_seq for run in windows.stored("p", 11, 2)] == [1, 2]


def test_windows_are_bounded() -> None:
    windows = Windows()
    for number in range(RUNS_PER_PRODUCER + 5):
        windows.add("p", KeyRun(number, 1, 2 * number, 0, 0))
    assert windows.stored("p", 5, 1)
    with pytest.raises(SequenceTooOld):
        windows.stored("p", 4, 1)
    for number in range(RUNS_MAX):
        windows.add(f"q{number}", KeyRun(0, 1, 0, 0, 0))
    assert windows.stored("p", 1, 1) == [], "the one that was silent longest is forgotten"
    assert len(windows) == RUNS_MAX


def test_the_file_gives_back_the_windows() -> None:
    windows = Windows()
    windows.add("p", KeyRun(1, 2, 3, 4, 5))
    assert decode_windows(windows.encode()).stored("p", 1, 2) == [KeyRun(1, 2, 3, 4, 5)]


def test_keys_travel_in_the_envelope() -> None:
    own = pa.record_batch({"trace": pa.array(["a", "b"])})
    envelope = with_key(own, "p", 9)
    assert key_in(envelope) == ("p", 9)
    assert envelope.column("trace").to_pylist() == ["a", "b"]
    assert key_in(with_key(envelope, "q", 10)) == ("q", 10)
    assert key_in(own) is None
    for producer, number in (("", 1), ("x" * 129, 1), ("p", -1), ("p", 1 << 63), ("p", True)):
        with pytest.raises(UsageError):
            check_key(producer, number)


# --- one engine --------------------------------------------------------------------------------------------------------------------


def test_a_bundle_that_comes_again_is_not_stored_again(driver: KeyedDriver) -> None:
    (first,) = driver.push_keyed(1, 3)
    again = driver.push_keyed(1, 3)
    assert again == [msgspec.structs.replace(first, tag=again[0].tag, is_duplicate=True)]
    known, new = driver.push_keyed(3, 4)
    assert (known.is_duplicate, known.count, new.is_duplicate, new.count) == (True, 1, False, 3)
    assert known.sequence == first.sequence + 2
    assert new.sequence == first.sequence + 3
    with pytest.raises(SequenceGap):
        driver.push_keyed(8)
    assert driver.push_keyed(1, producer="other")[0].is_duplicate is False
    assert driver.stored() == [1, 2, 3, 4, 5, 6, 1]


def test_windows_survive_kill_seal_deletion_and_clean_shutdown(driver: KeyedDriver) -> None:
    driver.engine.registrations.register("s", "earliest")
    driver.push_keyed(1, 4)
    driver.settle()
    driver.restart()
    assert driver.push_keyed(4)[0].is_duplicate
    driver.push_keyed(5)
    driver.settle()
    driver.seal()
    assert driver.claim_numbers("s") == [1, 2, 3, 4, 5]
    for info in driver.engine.segments():
        driver.resolve("s", "owner", info.segment_seq, "ack", range(info.bundle_count))
    driver.flush_progress()
    driver.drain_and_close()
    driver.reopen()
    assert [run.is_duplicate for run in driver.push_keyed(1, 6)] == [True, True, False]


def test_after_any_crash_a_producer_that_goes_on_stores_everything_once() -> None:
    recorder = Recorder(SimDisk())
    driver = KeyedDriver(OrderMonitor(recorder), SETTINGS)
    recorder.moments.clear()
    acknowledged = 0
    for first in (1, 4, 8, 12):
        driver.push_keyed(first, 4, rows=1200)
        driver.push_numbered(100 + first)
        driver.commit()
        acknowledged = first + 3
        recorder.facts += ["x"] * (acknowledged - len(recorder.facts))
        driver.run_background()
    driver.seal()
    random, seen = Random("keys"), 0
    for disk, known in recorder.moments:
        for mode in (random.choice(list(CrashMode)), CrashMode.KEEP):
            left = KeyedDriver(OrderMonitor(disk.crash(mode, random.randrange(1 << 30))), SETTINGS)
            # The producer does not know whether its last acknowledgement was lost: it begins a little before it.
            begin = max(1, known - 2)
            left.push_keyed(begin, 16 - begin)
            left.settle()
            numbers = [number for number in left.stored() if number < 100]
            assert numbers == list(range(1, 16)), f"{mode}, {known} acknowledged"
            seen += 1
    assert seen > 60
