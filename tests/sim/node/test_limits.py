"""What the check of the limits finds: a worker that makes logs beyond its grant, and no worker that only keeps its promises."""

from __future__ import annotations

import pytest

from quiver_actors.base.units import KIB
from tests.sim.node.limits import TAIL_BYTES, TopicUse, check_growth
from tests.sim.node.model import Violation

GRANT = 88 * KIB
PROCESS = object()


def use(
    known_bytes: int, measured_bytes: int = 0, grant_bytes: int = GRANT, process: object | None = PROCESS
) -> TopicUse:
    return TopicUse(known_bytes, measured_bytes, grant_bytes, 1, process)


def test_a_log_within_the_grant_is_no_violation_while_small_files_are_not_measured() -> None:
    """Seven small files of a block were made since the topic began: they count when they are measured, and no log is made on top then."""
    check_growth("worker 0", use(12 * KIB), use(GRANT))
    check_growth("worker 0", use(GRANT), use(GRANT, measured_bytes=28 * KIB))


def test_a_log_beyond_the_grant_is_a_violation() -> None:
    with pytest.raises(Violation, match="beyond its grant"):
        check_growth("worker 0", use(12 * KIB), use(GRANT + TAIL_BYTES + 1))


def test_small_files_that_were_measured_count_when_a_log_is_made() -> None:
    within = GRANT + TAIL_BYTES - 28 * KIB
    check_growth("worker 0", use(12 * KIB, measured_bytes=28 * KIB), use(within, measured_bytes=28 * KIB))
    with pytest.raises(Violation, match="beyond its grant"):
        check_growth("worker 0", use(12 * KIB, measured_bytes=28 * KIB), use(within + 1, measured_bytes=28 * KIB))


def test_the_tail_of_a_seal_asks_nobody() -> None:
    check_growth(
        "worker 0", use(2 * GRANT, measured_bytes=28 * KIB), use(2 * GRANT + TAIL_BYTES, measured_bytes=28 * KIB)
    )


def test_a_grant_that_was_lowered_after_the_log_was_made_is_no_violation() -> None:
    check_growth("worker 0", use(12 * KIB), use(GRANT, grant_bytes=20 * KIB))


@pytest.mark.parametrize("process", [None, object()])
def test_files_that_another_process_has_left_are_no_violation(process: object | None) -> None:
    check_growth("worker 0", use(0), use(2 * GRANT, process=process))
