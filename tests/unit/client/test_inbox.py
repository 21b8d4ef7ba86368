"""The inbox hands everything over once, in order, and accounts for it, whatever is put back, lost or given back in between."""

from __future__ import annotations

import random
from array import array
from typing import Any, cast

import pytest

from quiver_actors.client.gaps import WaitingGap
from quiver_actors.client.grants import Grant, Parcel
from quiver_actors.client.inbox import Inbox
from quiver_actors.protocol.messages import Deliver, Gap


class Sender:
    """What an inbox asks of the channel that a parcel came by."""

    def __init__(self) -> None:
        self.core = 0
        self.generation = 0
        self.taken = 0
        self.released = 0
        self.returned: list[int] = []

    def take(self, bundles: int) -> None:
        self.taken += bundles

    def release(self, grant: Grant, bundles: int) -> None:
        self.released += bundles

    def give_back(self, parcel: Parcel) -> None:
        self.returned += parcel.indexes[parcel.position :]


def inbox_of(prefetch: int) -> Inbox[int]:
    return Inbox(lambda parcel, index, count: index, prefetch)


def parcel_of(sender: Sender, first: int, count: int, until_ns: int = 0) -> Parcel:
    indexes, counts = array("I", range(first, first + count)).tobytes(), array("H", [1] * count).tobytes()
    grant = Grant(first + 1, until_ns, 0)
    return Parcel(cast(Any, sender), grant, cast(Any, None), Deliver("t", "s", 4, indexes, grant.token, counts))


def gap_of(sender: Sender) -> WaitingGap:
    return WaitingGap(cast(Any, sender), Gap("t", "s", 1, 4, 0, 4, 5, 20, "damaged"))


@pytest.mark.parametrize("prefetch", [1, 4, 64, 1000])
def test_every_bundle_is_handed_over_lost_or_given_back_once(prefetch: int) -> None:
    for seed in range(40):
        chance, sender, inbox = random.Random(seed), Sender(), inbox_of(prefetch)
        arrived, handed, gaps = 0, list[int](), 0
        for _ in range(chance.randrange(200)):
            what = chance.random()
            if what < 0.1:
                count = chance.randrange(1, 90)
                inbox.append(parcel_of(sender, arrived, count))
                arrived += count
            elif what < 0.13:
                inbox.append(gap_of(sender))
                gaps += 1
            elif isinstance(item := inbox.take(1), WaitingGap):
                if chance.random() < 0.5:
                    inbox.put_back(item)
                    assert inbox.is_at_gap
                else:
                    gaps -= 1
            elif item is not None:
                handed.append(item)
        assert inbox.waiting == arrived - len(handed)
        inbox.give_back()
        assert handed + sender.returned == list(range(arrived))
        assert sender.taken == len(handed)
        assert inbox.take(1) is None


def test_credit_is_counted_no_later_than_a_quarter_of_the_prefetch() -> None:
    sender, inbox = Sender(), inbox_of(16)
    inbox.append(parcel_of(sender, 0, 100))
    for number in range(100):
        assert inbox.take(1) == number
        assert number + 1 - sender.taken < 4
    assert sender.taken == 100


def test_bundles_whose_lease_is_over_are_not_handed_over() -> None:
    sender, inbox = Sender(), inbox_of(64)
    inbox.append(parcel_of(sender, 0, 10, until_ns=1000))
    inbox.append(parcel_of(sender, 10, 3))
    assert [inbox.take(999) for _ in range(4)] == [0, 1, 2, 3]
    assert inbox.take(1000) == 10
    assert inbox.lost_count == 6
    assert sender.taken == 10, "they make room for others"
    assert sender.released == 6, "and are not held any more"


def test_bundles_of_a_lost_connection_are_not_handed_over() -> None:
    sender, inbox = Sender(), inbox_of(64)
    inbox.append(parcel_of(sender, 0, 10))
    inbox.append(gap_of(sender))
    assert inbox.take(1) == 0
    sender.generation = 1
    inbox.append(parcel_of(sender, 20, 2))
    assert [inbox.take(1), inbox.take(1), inbox.take(1)] == [20, 21, None]
    assert sender.taken == 2, "credit of the lost connection is gone with it"
    assert inbox.lost_count == 0, "nobody had been promised anything"
