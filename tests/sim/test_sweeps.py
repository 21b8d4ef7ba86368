"""Crashes and errors at every call of simulated runs; `python -m tests.sim` does the same for longer.

All tasks run in processes of their own, one for each CPU; a test waits for its own. The last one adds everything up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.sim.faults import FATAL_SITES, TOLERATED_SITES, WAITING_SITES
from tests.sim.file_kinds import ELSEWHERE, kind_of
from tests.sim.report import (
    Report,
    Task,
    close_gaps,
    crash_tasks,
    effort_from_environment,
    fault_tasks,
    processes,
    run_task,
    scene_tasks,
)
from tests.sim.sites import call_sites

EFFORT = effort_from_environment()
ROOT = Path(__file__).parent.parent.parent
EXAMPLES = {"<16 digits>": "0" * 16, "<4 digits>": "0" * 4, "<number>": "0" * 16, "<N>": "1", "<id>": "ann"}
COLUMNS = {f"quiver.{name}" for name in ("producer", "producer_sequence", "traceparent", "tracestate", "baggage")}
"""Words of the format page that look like names of files."""
CRASHES, FAULTS, SCENES = list(crash_tasks(EFFORT)), list(fault_tasks(EFFORT)), list(scene_tasks(EFFORT))


class Sweeps:
    """The tasks that the tests of this run want, under way."""

    def __init__(self, tasks: list[Task]) -> None:
        self._pool = processes()
        self._futures: dict[Task, Future[Report]] = {task: self._pool.submit(run_task, task) for task in tasks}

    def result(self, task: Task) -> Report:
        if task not in self._futures:
            self._futures[task] = self._pool.submit(run_task, task)
        return self._futures[task].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def sweeps(request: pytest.FixtureRequest) -> Iterator[Sweeps]:
    wanted = [task for item in request.session.items if (task := _task_of(item)) is not None]
    running = Sweeps(wanted)
    yield running
    running.close()


def _task_of(item: pytest.Item) -> Task | None:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get("task") if item.path.name == "test_sweeps.py" else None


@pytest.mark.parametrize("task", CRASHES, ids=lambda task: f"{task.profile}-{task.part}")
def test_a_power_loss_at_any_call_loses_nothing_that_was_acknowledged(task: Task, sweeps: Sweeps) -> None:
    assert len(sweeps.result(task).crashes.images) >= EFFORT.crash_states // len(CRASHES)


@pytest.mark.parametrize("task", FAULTS, ids=lambda task: task.profile)
def test_an_error_of_any_call_loses_nothing_that_was_acknowledged(task: Task, sweeps: Sweeps) -> None:
    assert sweeps.result(task).faults.sites


@pytest.mark.parametrize("task", SCENES, ids=lambda task: task.scene)
def test_the_recovery_of_a_damaged_or_foreign_directory_survives_crashes_and_errors(task: Task, sweeps: Sweeps) -> None:
    report = sweeps.result(task)
    assert report.crashes.images
    assert report.faults.cases


def test_the_call_sites_that_the_oracle_names_exist() -> None:
    """One that was renamed would be forgotten in silence."""
    assert call_sites() >= FATAL_SITES | TOLERATED_SITES | WAITING_SITES


def test_every_file_of_the_format_page_is_a_kind_that_is_swept() -> None:
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:wal|segments|staged)/[^`]+|quiver\.[^` ]+)`", page))
    files = {name for name in named if not name.endswith(".py")} - COLUMNS
    assert len(files) > 15
    for name in files:
        example = name
        for placeholder, value in EXAMPLES.items():
            example = example.replace(placeholder, value)
        is_swept = kind_of(example, "") or kind_of(f"wal/{example}", "")
        assert is_swept or any(name.startswith(other) for other in ELSEWHERE), f"{name} is no kind of file_kinds.KINDS"


def test_every_call_on_the_disk_was_crashed_before_and_made_to_fail(sweeps: Sweeps) -> None:
    report = Report()
    tasks: list[Task] = [*CRASHES, *FAULTS, *SCENES]
    for task in tasks:
        report.add(sweeps.result(task))
    close_gaps(report, EFFORT)
    assert report.sites_without_crash() == set()
    assert report.sites_without_error() == set()
    assert report.file_kinds_without_crash() == set()
    figures = report.figures()
    assert figures["call_sites_hit"] == figures["call_sites"]
    assert figures["crash_states"] >= EFFORT.crash_states
