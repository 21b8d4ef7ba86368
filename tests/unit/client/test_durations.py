"""Lengths of time that callers give: numbers of seconds, or an error that says so."""

from __future__ import annotations

import pytest

from quiver_actors.client import Client, Subscription
from quiver_actors.errors import UsageError
from tests.unit.client.feeding import batch


@pytest.mark.parametrize(
    "options",
    [{"lease": "10m"}, {"lease": float("nan")}, {"lease": True}, {"orphan_ttl": "1d"}, {"idle_timeout": "2s"}],
)
def test_options_of_a_subscription_are_numbers_of_seconds(client: Client, options: dict[str, object]) -> None:
    """A lease of "10m", as settings have it, was a bare TypeError."""
    ((name, value),) = options.items()
    with pytest.raises(UsageError, match=f"^{name}={value!r} is not possible: expected a number of seconds, "):
        client.subscribe("exporter", topic="travel", **options)  # type: ignore[call-overload]


def test_a_timeout_that_is_no_number_takes_no_memory(client: Client, subscription: Subscription) -> None:
    """A text times the nanoseconds of a second was gigabytes of text, before it was a TypeError."""
    refused = r"^a timeout of '10s' is not possible: expected a number of seconds"
    with pytest.raises(UsageError, match=refused):
        subscription.get("10s")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=refused):
        client.push(batch(1), topic="travel", timeout="10s")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^ttl='12h' is not possible: expected a number of seconds"):
        client.hold("stream", ttl="12h")  # type: ignore[arg-type]
