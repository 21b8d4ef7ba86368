"""Stages of a worker, where a real one would have to fail at one moment."""

from __future__ import annotations

from quiver_actors.node.worker.staging import Staging
from quiver_actors.store.engine import events
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver


def test_a_stage_that_is_prepared_when_everybody_was_refused_is_told_to_nobody() -> None:
    driver = EngineDriver(SimDisk())
    staging = Staging(
        driver.engine, touch=lambda: None, closed_by=lambda: None, ask=lambda *_: None, own_log="decisions"
    )
    staging.fail("the disk said no")
    staging.apply(events.StagePrepared(1))
