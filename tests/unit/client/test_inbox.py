"""The inbox hands everything over once, in order, and accounts for it, whatever is put back, lost or given back in between."""

from __future__ import annotations

import random
from array import array
from typing import Any, cast

import pytest

from quiver_actors.base.protocol.messages import Deliver, Gap
from quiver_actors.client.gaps import GapNotices, WaitingGap
from quiver_actors.client.grants import Grant, Parcel, Portion
from quiver_actors.client.inbox import Inbox


class Handed:
    """What an inbox asks of the channel about bundles that are handed over."""

    is_told = False

    def message(self, grant: Grant, bundle_indexes: array[int]) -> array[int]:
        assert self.is_told
        return bundle_indexes


class Sender:
    """What an inbox asks of the channel that a parcel came by."""

    def __init__(self) -> None:
        self.core = 0
        self.generation = 0
        self.gaps = GapNotices("t", "s")
        self.taken = 0
        self.asked: list[int] = []
        """Tokens whose lease is over by the clock."""
        self.returned: list[int] = []
        self.handed = Handed()
        self.told: list[int] = []

    def send(self, messages: list[array[int]]) -> None:
        for message in messages:
            self.told += message

    def take(self, bundles: int) -> None:
        self.taken += bundles

    def ask(self, grant: Grant, now_ns: int) -> None:
        self.asked.append(grant.token)

    def give_back(self, parcel: Parcel) -> None:
        self.returned += parcel.indexes[parcel.position :]


def inbox_of(prefetch: int) -> Inbox[int]:
    return Inbox(prefetch, lambda parcel, index, count: index)


def parcel_of(sender: Sender, first: int, count: int, until_ns: int = 0) -> Parcel:
    indexes, counts = array("I", range(first, first + count)).tobytes(), array("H", [1] * count).tobytes()
    grant = Grant(first + 1, until_ns, 0)
    return Parcel(cast(Any, sender), grant, cast(Any, None), Deliver("t", "s", 4, indexes, grant.token, counts))


def gap_of(sender: Sender) -> WaitingGap:
    return WaitingGap(cast(Any, sender), Gap("t", "s", 1, 4, 0, 4, 5, 20, "damaged"))


def take_some(inbox: Inbox[int], chance: random.Random) -> int | Portion | WaitingGap | None:
    """The next bundle, or as many of a parcel as there are up to some number."""
    return inbox.take(1) if chance.random() < 0.7 else inbox.take_portion(1, chance.randrange(1, 100))


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
            elif isinstance(item := take_some(inbox, chance), WaitingGap):
                if chance.random() < 0.5:
                    inbox.put_back(item)
                    assert inbox.is_at_gap
                else:
                    gaps -= 1
            elif isinstance(item, Portion):
                # The caller may want no more in the middle of what was taken for him.
                count = len(item.indexes)
                stop = count if chance.random() < 0.5 else chance.randrange(count)
                handed += item.indexes[:stop]
                inbox.put_back(item.part(stop, count))
            elif item is not None:
                handed.append(item)
        assert inbox.waiting == arrived - len(handed)
        inbox.give_back()
        assert handed + sender.returned == list(range(arrived))
        assert sender.taken == len(handed)
        assert inbox.take(1) is None


def test_what_is_handed_over_one_by_one_was_told_before() -> None:
    """Whoever dies of a bundle says no more: the worker has to know by then, and of no other bundle."""
    sender, inbox = Sender(), inbox_of(64)
    inbox.append(parcel_of(sender, 0, 40))
    assert [inbox.take(1), inbox.take(1)] == [0, 1]
    inbox.count_taken()
    sender.handed.is_told = True
    inbox.append(parcel_of(sender, 40, 10))
    inbox.waiting_of(parcel_of(sender, 90, 1).grant)
    assert sender.told == [], "what was handed over before is not the inbox's to tell"
    for number in range(2, 50):
        assert inbox.take(1) == number
        assert sender.told == list(range(2, number + 1))


def test_what_waits_of_a_grant() -> None:
    sender, inbox = Sender(), inbox_of(64)
    parcel = parcel_of(sender, 0, 40)
    inbox.append(parcel)
    inbox.append(parcel_of(sender, 40, 10))
    assert [inbox.take(1), inbox.take(1)] == [0, 1]
    assert inbox.waiting_of(parcel.grant) == set(range(2, 40))


def test_a_portion_is_of_one_parcel_that_is_held() -> None:
    sender, inbox = Sender(), inbox_of(64)
    parcel = parcel_of(sender, 0, 10, until_ns=1000)
    inbox.append(parcel)
    inbox.append(parcel_of(sender, 20, 2))
    assert inbox.take(1) == 0
    first, second = inbox.take_portion(1, 4), inbox.take_portion(1, 100)
    assert isinstance(first, Portion)
    assert isinstance(second, Portion)
    assert ([*first.indexes], [*second.indexes]) == ([1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert (sender.taken, parcel.grant.waiting) == (10, 0)
    sender.generation = 1
    assert inbox.take_portion(1, 100) is None, "the connection of its claims was lost"


def test_credit_is_counted_no_later_than_a_quarter_of_the_prefetch() -> None:
    sender, inbox = Sender(), inbox_of(16)
    inbox.append(parcel_of(sender, 0, 100))
    for number in range(100):
        assert inbox.take(1) == number
        assert number + 1 - sender.taken < 4
    assert sender.taken == 100


def test_the_worker_decides_about_bundles_whose_lease_is_over_by_the_clock() -> None:
    sender, inbox = Sender(), inbox_of(64)
    parcel = parcel_of(sender, 0, 10, until_ns=1000)
    inbox.append(parcel)
    inbox.append(parcel_of(sender, 10, 3))
    assert [inbox.take(999) for _ in range(4)] == [0, 1, 2, 3]
    assert inbox.take(1000) is None
    assert sender.asked == [parcel.grant.token]
    parcel.grant.lease_until_ns = 2000
    assert inbox.take(1000) == 4, "it is held: another consumer has made the leases longer"
    assert inbox.take(2000) is None
    assert inbox.withdraw(parcel.grant, parcel.grant.withdraw(0, 100)) == 5
    assert inbox.take(2000) == 10
    assert inbox.lost_count == 5
    assert parcel.grant.waiting == 0


def test_what_the_worker_withdraws_is_not_handed_over() -> None:
    sender, inbox = Sender(), inbox_of(64)
    parcel, other = parcel_of(sender, 0, 10), parcel_of(sender, 20, 2)
    inbox.append(parcel)
    inbox.append(other)
    assert [inbox.take(1), inbox.take(1)] == [0, 1]
    parcel.grant.finished.append(0)
    assert parcel.grant.withdraw(0, 5) == {1, 2, 3, 4}
    assert inbox.withdraw(parcel.grant, {1, 2, 3, 4}) == 3, "one of them was handed over"
    assert parcel.grant.withdraw(3, 7) == {5, 6}, "nothing is withdrawn twice"
    assert inbox.withdraw(parcel.grant, {5, 6}) == 2
    assert [inbox.take(1) for _ in range(5)] == [7, 8, 9, 20, 21]
    assert (parcel.grant.waiting, inbox.waiting, inbox.lost_count) == (0, 0, 5)


def test_bundles_that_are_put_back_and_were_withdrawn_or_lost_meanwhile_do_not_come_again() -> None:
    sender, inbox = Sender(), inbox_of(64)
    parcel = parcel_of(sender, 0, 10)
    inbox.append(parcel)
    first, second = inbox.take_portion(1, 4), inbox.take_portion(1, 4)
    assert isinstance(first, Portion)
    assert isinstance(second, Portion)
    assert parcel.grant.withdraw(2, 5) == {2, 3, 4}
    inbox.put_back(second)
    inbox.put_back(first)
    assert [inbox.take(1) for _ in range(7)] == [0, 1, 5, 6, 7, 8, 9]
    sender.generation = 1
    inbox.put_back(first)
    assert inbox.take(1) is None


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
