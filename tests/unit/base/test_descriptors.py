"""A process asks for descriptors, as far as the system lets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from quiver_actors.base.descriptors import want_descriptors

soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
want_descriptors(wanted)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "found"), [(100, 200, 150, 150), (100, 200, 300, 200), (100, 200, 50, 100)]
)
def test_the_soft_limit_is_raised_up_to_the_hard_one_and_never_lowered(
    soft: int, hard: int, wanted: int, found: int
) -> None:
    command = [sys.executable, "-c", PROGRAM, *map(str, (soft, hard, wanted))]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.split() == [str(found), str(hard)]
