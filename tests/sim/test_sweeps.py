"""Crashes and errors at every call of simulated runs; `python -m tests.sim` does the same for longer."""

from __future__ import annotations

import pytest

from tests.sim.report import Effort, Report, crash_profile, fail_profile, sweep_scene
from tests.sim.scenes import rust_scenes
from tests.sim.world import PROFILES, Profile

EFFORT = Effort(1000, 0)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_power_loss_at_any_call_loses_nothing_that_was_acknowledged(profile: Profile) -> None:
    report = Report()
    crash_profile(profile, EFFORT, report.crashes)
    assert len(report.crashes.images) >= EFFORT.crash_states // len(PROFILES)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_an_error_of_any_call_loses_nothing_that_was_acknowledged(profile: Profile) -> None:
    report = Report()
    fail_profile(profile, EFFORT, report.faults)
    assert report.faults.sites


def test_a_power_loss_while_a_rust_directory_is_adopted_loses_nothing() -> None:
    report = Report()
    for scene in rust_scenes():
        sweep_scene(scene, EFFORT, report)
    assert report.crashes.images
