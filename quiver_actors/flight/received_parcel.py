"""The claim of a delivery that came from another host, in the place of a worker's `client.grants.Parcel`."""

from __future__ import annotations

from typing import NamedTuple

from quiver_actors.client.grants import Grant
from quiver_actors.client.segments import MappedSegment


class ReceivedParcel(NamedTuple):
    """One bundle that is claimed."""

    segment: MappedSegment
    grant: Grant
    """Grant of this bundle alone."""
    number: int
    """Number of the delivery in its consumer."""
    generation: int
    """Generation of the consumer that it was delivered to."""
