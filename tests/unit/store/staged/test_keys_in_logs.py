"""The keys of idempotent pushes as they stand in a log that a start reads."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol.messages import KeyedPush
from quiver_actors.store.staged.keys import (
    with_key,
)
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import numbered_batch
from tests.unit.store.staged.test_key_holes import damage_header, opened
from tests.unit.store.staged.test_keys import SETTINGS, KeyedDriver

# --- what stands in a log ----------------------------------------------------------------------------------------------------------


def reopened_after_a_kill(*bundles: dict[int, pa.RecordBatch], plain: bool = False) -> KeyedDriver:
    driver = KeyedDriver(SimDisk(), SETTINGS)
    memory, push, schemas = driver.layout(bundles)
    keyed = KeyedPush(**msgspec.structs.asdict(push), producer="p", first_number=1)
    if not driver.engine.intake.can_stage(len(memory)):
        driver.run_background()
    driver.engine.intake.stage(memory, push if plain else keyed, schemas)
    driver.engine.write()
    driver.settle()
    driver.restart()
    return driver


def test_a_key_beside_dictionaries_is_remembered() -> None:
    own = pa.record_batch({"trace": pa.array(["a", "b", "a"]).dictionary_encode()})
    bundles = [{0: numbered_batch(n), ENVELOPE_SLOT: with_key(own, "p", n)} for n in (1, 2)]
    driver = reopened_after_a_kill(*bundles)
    assert [run.is_duplicate for run in driver.push_keyed(1, 3)] == [True, False]


ONE = pa.array([1], pa.uint64())


NO_UTF8 = pa.StringArray.from_buffers(1, pa.py_buffer(bytes(4) + b"\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))


def beyond_its_bytes() -> pa.RecordBatch:
    offsets = bytearray(bytes(8))
    strings = pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(b"p"))
    envelope = pa.record_batch({"quiver.producer": strings, "quiver.producer_sequence": ONE})
    offsets[4:] = (1 << 30).to_bytes(4, "little")
    return envelope


@pytest.mark.parametrize(
    "envelope",
    [
        pa.RecordBatch.from_arrays(
            [pa.array(["p"]), pa.array(["p"]), ONE], ["quiver.producer"] * 2 + ["quiver.producer_sequence"]
        ),
        pa.record_batch({"quiver.producer": ["p"], "quiver.producer_sequence": pa.array([1 << 60], pa.timestamp("s"))}),
        pa.record_batch({"quiver.producer": pa.array([None], pa.string()), "quiver.producer_sequence": ONE}),
        pa.record_batch({"quiver.producer": NO_UTF8, "quiver.producer_sequence": ONE}),
        beyond_its_bytes(),
    ],
)
def test_an_envelope_that_cannot_be_read_keeps_no_engine_from_opening(envelope: pa.RecordBatch) -> None:
    driver = reopened_after_a_kill({0: numbered_batch(1), ENVELOPE_SLOT: envelope}, plain=True)
    assert not driver.push_keyed(1)[0].is_duplicate
    assert driver.stored() == [1, 1]


def test_the_keys_of_a_log_whose_header_is_damaged_are_remembered() -> None:
    disk = SimDisk()
    driver = KeyedDriver(disk, SETTINGS)
    driver.push_keyed(1, 3)
    driver.settle()
    damage_header(driver)
    driver = opened(disk.crash(CrashMode.DROP))
    assert [run.is_duplicate for run in driver.push_keyed(1, 4)] == [True, False]
    assert driver.stored() == [1, 2, 3, 4]
