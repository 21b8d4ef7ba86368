"""Topics whose directories could not be opened: when each is tried again, and for which errors that can help."""

from __future__ import annotations

import errno

import pytest

from quiver_actors.base.config import TopicSettings
from quiver_actors.errors import AlreadyRunning, ConfigMismatch, DiskError, QuiverError, UnsupportedVersion
from quiver_actors.node.worker.unopened import RETRY_NS_FIRST, RETRY_NS_MAX, Unopened, may_pass

SETTINGS = TopicSettings(name="default")


def test_each_is_tried_again_later_each_time_up_to_a_limit_and_alone() -> None:
    unopened = Unopened()
    waits = [unopened.failed("a", SETTINGS, "EIO", now_ns=0) for _ in range(10)]
    assert waits[:3] == [RETRY_NS_FIRST, 2 * RETRY_NS_FIRST, 4 * RETRY_NS_FIRST]
    assert waits[-1] == RETRY_NS_MAX
    unopened.failed("b", SETTINGS, "EIO", now_ns=0)
    assert list(unopened.due(RETRY_NS_FIRST - 1)) == []
    assert list(unopened.due(RETRY_NS_FIRST)) == ["b"]
    assert list(unopened.due(RETRY_NS_MAX)) == ["a", "b"]
    unopened.forget("a")
    assert "a" not in unopened
    assert unopened
    unopened.forget("b")
    assert not unopened
    assert unopened.failed("a", SETTINGS, "EIO", now_ns=0) == RETRY_NS_FIRST, "forgotten, with how long it had waited"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DiskError("open", "default/core_1", errno.EIO), True),
        (AlreadyRunning("held"), True),
        (ConfigMismatch("another slot table"), False),
        (UnsupportedVersion("newer"), False),
    ],
)
def test_what_the_contents_of_the_directory_forbid_is_not_tried_again(error: QuiverError, expected: bool) -> None:
    assert may_pass(error) is expected
