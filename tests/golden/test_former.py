"""A directory that commit 90d0418 has written, killed with work under way: this release opens it, and accounts for every bundle."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from quiver_actors.store.disk.posix import PosixDisk
from tests.support.engine_driver import EngineDriver
from tests.support.stage_driver import StageDriver

FORMER = Path(__file__).parent / "data/former-90d0418.tar.xz"
IN_LOG = [54, 55, 70, 71, 72]
OWED = {
    "done": [50, 52, 53, *IN_LOG],
    "half": [1, 3, *range(100, 600), 50, 52, 53, *IN_LOG],
    "fresh": [*range(4), *range(100, 600), 50, 52, 53, *IN_LOG],
}


@pytest.fixture
def former(tmp_path: Path) -> StageDriver:
    with tarfile.open(FORMER) as archive:
        archive.extractall(tmp_path, filter="data")
    driver = StageDriver(PosixDisk(str(tmp_path)))
    driver.settle()
    return driver


@pytest.mark.parametrize("subscriber", OWED)
def test_every_subscriber_gets_what_it_is_owed_and_is_told_what_is_lost(former: StageDriver, subscriber: str) -> None:
    assert former.claim_numbers(subscriber) == OWED[subscriber]
    told = [(gap.segment_seq, gap.bundle_index_first, gap.bundle_count, gap.reason) for gap in former.told]
    assert told == [(2, 1, 1, "damaged")]


def test_the_prepared_stage_is_published(former: StageDriver) -> None:
    (stage,) = former.engine.stages
    former.publish(stage.number)
    assert former.claim_numbers("done") == [*OWED["done"], 60, 61]


def test_numbers_go_on_and_another_start_finds_the_same(former: StageDriver) -> None:
    used = max(info.segment_seq for info in former.engine.segments())
    (run,) = former.push_numbered(80)
    assert run.segment_seq > used
    former.settle()
    former.drain_and_close()
    again = EngineDriver(former.disk)
    again.settle()
    assert again.claim_numbers("fresh") == [*OWED["fresh"], 80]
    assert again.engine.recovery_notes == ["stage 1 of transaction t is prepared and kept"]
