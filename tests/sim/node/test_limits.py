"""What the check of a topic's limit finds: logs and segments beyond the limit, and nothing that the limit allows."""

from __future__ import annotations

import pytest

from quiver_actors.base.units import KIB
from tests.sim.node.limits import TAIL_BYTES, check_known
from tests.sim.node.model import Violation

LIMIT = 200 * KIB


def test_the_tail_of_a_seal_on_each_core_is_allowed() -> None:
    check_known("default", [LIMIT, TAIL_BYTES, TAIL_BYTES, TAIL_BYTES], LIMIT - TAIL_BYTES)


def test_one_byte_more_is_a_violation() -> None:
    with pytest.raises(Violation, match="topic default are on the disks"):
        check_known("default", [LIMIT, 2 * TAIL_BYTES + 1], LIMIT)
