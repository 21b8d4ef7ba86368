from __future__ import annotations

import pytest

from quiver_actors.errors import UsageError
from quiver_actors.forward import Backoff


def test_delays_grow_to_the_maximum() -> None:
    delays = [Backoff(jitter=0).delay_seconds(attempts) for attempts in range(1, 8)]
    assert delays == [1, 2, 4, 8, 16, 30, 30]


def test_any_number_of_attempts_is_possible() -> None:
    assert Backoff(jitter=0).delay_seconds(65_535) == 30
    assert Backoff(initial=5, multiplier=1, jitter=0).delay_seconds(65_535) == 5
    assert Backoff(initial=0, jitter=0).delay_seconds(65_535) == 0


def test_jitter_shortens() -> None:
    backoff = Backoff(jitter=0.5)
    assert backoff.delay_seconds(3, lambda: 0.0) == 4
    assert backoff.delay_seconds(3, lambda: 1.0) == 2
    assert all(2 <= backoff.delay_seconds(3) <= 4 for _ in range(100))


@pytest.mark.parametrize(
    "values", [{"initial": -1}, {"initial": 31}, {"multiplier": 0.5}, {"jitter": 1.1}, {"jitter": -0.1}]
)
def test_values_out_of_range_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Backoff(**values)
