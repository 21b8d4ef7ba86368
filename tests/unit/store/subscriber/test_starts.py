"""Where a new subscriber begins: what the text may be."""

from __future__ import annotations

import numpy as np
import pytest

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import UsageError
from quiver_actors.store.subscriber.starts import Start, parse_start, resolved_before


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("latest", Start("latest")),
        ("earliest", Start("earliest")),
        ("time:170", Start("time", unix_ns=170)),
        ("bundle:1/22/3", Start("bundle", core=1, segment_seq=22, bundle_index=3)),
    ],
)
def test_each_kind_is_understood(text: str, start: Start) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text",
    [
        "",
        "newest",
        "latest:",
        "time:",
        "time:-1",
        "time:1/2",
        f"time:{'9' * 20}",
        "bundle:1/2",
        "bundle:1/2/x",
        "time:²",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected latest, earliest"):
        parse_start(text)


def test_a_bundle_that_no_segment_can_have_is_refused() -> None:
    assert parse_start(f"bundle:1/22/{SEGMENT_BUNDLES_MAX}").bundle_index == SEGMENT_BUNDLES_MAX
    with pytest.raises(UsageError, match=f"a segment has at most {SEGMENT_BUNDLES_MAX} bundles"):
        parse_start(f"bundle:1/22/{SEGMENT_BUNDLES_MAX + 1}")


def test_bundles_from_before_a_moment_are_resolved_and_those_of_unknown_time_are_not() -> None:
    found = resolved_before(np.array([5, 0, 10, 11, *[3] * 70]), 10)
    assert found.bundle_count == 74
    assert int.from_bytes(found.bitmap, "little") == 1 | ((1 << 70) - 1) << 4
    assert len(found.bitmap) == 16
