"""A data directory, a copy of it, and the cold directory that both name, for tests of who may change what lies there."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from quiver_actors.base.config import TierSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.engine.events import ColdDiskFaulted
from tests.support.engine_driver import EngineDriver, topic_settings

ENGINE = "default/core_0"


def fill(driver: EngineDriver, segments: int, first: int = 0) -> None:
    """Segments of two bundles each."""
    for number in range(first, first + segments):
        driver.push_numbered(2 * number, 2)
        driver.seal()


class Directories:
    """A data directory, a copy of it, and the cold directory that both name."""

    def __init__(self, tmp_path: Path, disks: contextlib.ExitStack) -> None:
        self.cold = tmp_path / "cold"
        self.hot = tmp_path / "hot"
        self.copy = tmp_path / "copy"
        self.cold.mkdir()
        self.hot.mkdir()
        self._disks = disks

    def opened(self, data_dir: Path, **options: Any) -> EngineDriver:
        disk = PosixDisk(str(data_dir))
        self._disks.callback(disk.close)
        tier = TierSettings(cold_dir=str(self.cold), keep_hot_segments=1)
        return EngineDriver(disk, topic_settings(tier=tier, segment_compaction="off"), **options)

    def filled(self) -> EngineDriver:
        """The original, with four segments of two bundles each of which three have moved, and a subscriber that has none of them."""
        driver = self.opened(self.hot)
        driver.engine.registrations.register("s", "earliest")
        fill(driver, 4)
        driver.run_for(5 * SECOND_NS)
        assert self.cold_segments() == [0, 1, 2]
        return driver

    def copied(self) -> EngineDriver:
        """A copy that is opened."""
        shutil.copytree(self.hot, self.copy)
        return self.opened(self.copy)

    def cold_segments(self) -> list[int]:
        return sorted(int(path.stem) for path in self.cold.glob(f"{ENGINE}/*/*.qseg"))

    def cold_file(self, segment_seq: int) -> Path:
        (path,) = self.cold.glob(f"{ENGINE}/*/{segment_seq:016}.qseg")
        return path

    @property
    def owner_file(self) -> Path:
        (path,) = self.cold.glob(f"{ENGINE}/*/quiver.cold-owner")
        return path

    def content(self) -> dict[str, bytes]:
        """Everything that lies in the cold directory, but for the lock."""
        return {path.name: path.read_bytes() for path in self.cold.glob(f"{ENGINE}/*/*") if "lock" not in path.name}


def faults_of(driver: EngineDriver) -> str:
    return " ".join(event.reason for event in driver.events if isinstance(event, ColdDiskFaulted))


def use_up(driver: EngineDriver) -> None:
    """Be done with what was moved, push more, and let everything move and go that may."""
    driver.engine.claims.ack_through("s", 2, 1)
    fill(driver, 3, first=4)
    driver.run_for(60 * SECOND_NS)
