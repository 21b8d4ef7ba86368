"""A node without room, descriptors or memory loses nothing, and goes on by itself when there is some again."""

from __future__ import annotations

import pytest

from tests.crash.test_kills import tally_of


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("limit", ["tmpfs", "client_descriptors"])
def test_a_node_at_a_limit_loses_nothing_and_resumes_by_itself(limit: str) -> None:
    tally = tally_of("tests.crash.limits", 1, 1, limit)
    assert tally["failures"] == []
    if reason := tally["skipped"].get(limit):
        pytest.skip(f"{limit}: {reason}")
    assert tally["rounds"] == {limit: 1}
    assert tally["acknowledged"] > 60
