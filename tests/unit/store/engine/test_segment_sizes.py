"""How large a segment becomes: its target at most, unless a single message is larger; that one has a segment of its own then."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import KIB
from quiver_actors.store.engine import Engine
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.support.stage_driver import OWNER, StageDriver

TARGET_BYTES = 64 * KIB
SETTINGS = topic_settings(
    segment_target_size_bytes=TARGET_BYTES, segment_compaction="off", retention=RetentionSettings(min_free_bytes=0)
)


def messages() -> list[list[dict[int, pa.RecordBatch]]]:
    """Return messages of one to three bundles, up to three times the target."""
    random = Random("sizes")
    sizes = [[random.randint(1, 64 * KIB) for _ in range(random.randint(1, 3))] for _ in range(40)]
    return [[{0: pa.record_batch({"blob": [bytes(size)]})} for size in message] for message in sizes]


def expected(sizes: list[int]) -> list[int]:
    """Bytes of entries of each segment, of messages of those sizes."""
    found = [0]
    for size in sizes:
        if found[-1] and found[-1] + size > TARGET_BYTES:
            found.append(0)
        found[-1] += size
    return found


def entry_bytes(engine: Engine) -> list[int]:
    return [info.position_end - info.position_start for info in engine.segments()]


def test_a_segment_is_sealed_before_a_message_that_would_overshoot_its_target() -> None:
    driver, sizes = EngineDriver(SimDisk(), SETTINGS), []
    for bundles in messages():
        sizes.append(len(driver.layout(bundles)[0]))
        driver.push(*bundles)
        driver.settle()
    driver.seal()
    found = entry_bytes(driver.engine)
    assert found == expected(sizes)
    assert {size for size in found if size > TARGET_BYTES} == {size for size in sizes if size > TARGET_BYTES} != set()


def test_the_parts_of_a_stage_do_not_overshoot_either() -> None:
    driver, sizes = StageDriver(SimDisk(), SETTINGS), []
    number = driver.begin()
    for bundles in messages():
        sizes.append(len(driver.layout(bundles)[0]))
        driver._push_staged(number, bundles, OWNER, item_count=None)
    driver.prepare(number)
    driver.publish(number)
    assert entry_bytes(driver.engine) == expected(sizes)
