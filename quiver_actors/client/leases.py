"""Beginning the leases of delivered bundles anew."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol, TypeVar

from quiver_actors.client.channels import raise_refusals
from quiver_actors.client.exchange import Flow
from quiver_actors.client.grants import Claim, ClaimChannel, Grant
from quiver_actors.client.questions import Request, answering
from quiver_actors.errors import AlreadyResolved, LeaseExpired


class _Held(Protocol):
    """A delivered bundle."""

    @property
    def claim(self) -> Claim: ...
    @property
    def is_resolved(self) -> bool: ...


H = TypeVar("H", bound=_Held)


def extending(bundles: Iterable[H], timeout_seconds: float) -> Flow[list[H]]:
    """Begin leases anew; returns the bundles that are not held any more, among them those that were resolved."""
    bundles = list(bundles)
    now_ns = time.monotonic_ns()
    grants: dict[ClaimChannel, set[Grant]] = {}
    for bundle in bundles:
        parcel = bundle.claim.parcel
        # Also where its lease is over by the clock: the worker has the last word.
        if not bundle.is_resolved and parcel.is_current:
            grants.setdefault(parcel.channel, set()).add(parcel.grant)
    requests = []
    for channel, held in grants.items():
        requests.append(Request(channel, channel.generation, channel.extension(held, now_ns)))
        channel.call(requests[-1].call)
    yield from answering(requests, timeout_seconds, is_loss_an_error=False)
    raise_refusals(request.call for request in requests)
    now_ns = time.monotonic_ns()
    return [bundle for bundle in bundles if bundle.is_resolved or not bundle.claim.is_held(now_ns)]


def extending_one(bundle: _Held, timeout_seconds: float) -> Flow[None]:
    """Begin the lease of a bundle anew, or raise.

    Raises:
        AlreadyResolved: the bundle was resolved.
        LeaseExpired: the lease was over, or its connection lost.
    """
    lost = yield from extending([bundle], timeout_seconds)
    if bundle.is_resolved:
        raise AlreadyResolved(f"{bundle!r} is not held any more")
    if lost:
        raise LeaseExpired(f"{bundle!r}: its lease was over, or its connection lost; it may be with another consumer")
