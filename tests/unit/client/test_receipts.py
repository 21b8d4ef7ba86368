"""Receipts that are made when somebody looks: what a list of them would be."""

from __future__ import annotations

import pickle
import random

import pytest

from quiver_actors.base.model import BundleId, Durability, Receipt
from quiver_actors.base.protocol.messages import AckRun
from quiver_actors.client.receipts import Receipts

SYNCED, WRITTEN = Durability.SYNCED, Durability.WRITTEN


def receipts(*runs: tuple[int, AckRun, Durability]) -> tuple[Receipts, list[Receipt]]:
    """The same receipts, lazily and as a plain list."""
    lazy, plain = Receipts("t"), []
    for core, run, durability in runs:
        lazy.add(core, run, durability)
        for place in range(run.count):
            bundle_id = BundleId("t", core, run.segment_seq, run.bundle_index + place)
            plain.append(Receipt(bundle_id, run.sequence + place, durability, run.is_duplicate))
    return lazy, plain


LAZY, PLAIN = receipts(
    (0, AckRun(1, 5, 100, 1000, 3), SYNCED),
    (0, AckRun(1, 6, 0, 1003, 1), SYNCED),
    (2, AckRun(9, 7, 40, 8, 4, is_duplicate=True), WRITTEN),
)


def test_length_items_and_iteration_are_those_of_the_list() -> None:
    assert len(LAZY) == len(PLAIN) == 8
    assert list(LAZY) == PLAIN
    assert [LAZY[place] for place in range(-8, 8)] == PLAIN + PLAIN
    assert list(reversed(LAZY)) == PLAIN[::-1]
    assert PLAIN[4] in LAZY
    assert LAZY.index(PLAIN[7]) == 7
    assert repr(LAZY) == repr(PLAIN)
    (first, *_), (*_, last) = LAZY, LAZY
    assert (first, last) == (PLAIN[0], PLAIN[-1])


def test_items_are_of_the_public_types() -> None:
    for receipt in (*LAZY, LAZY[6]):
        assert type(receipt) is Receipt
        assert type(receipt.bundle_id) is BundleId
        assert type(receipt.durability) is Durability
    assert LAZY[6].duplicate
    assert not LAZY[0].duplicate


@pytest.mark.parametrize("place", [8, -9, 1 << 70])
def test_an_index_outside_raises(place: int) -> None:
    with pytest.raises(IndexError, match="has 8"):
        LAZY[place]


def test_slices_are_lists() -> None:
    rng = random.Random(1)
    for _ in range(200):
        start, stop = (rng.choice((None, *range(-10, 11))) for _ in range(2))
        wanted = slice(start, stop, rng.choice((None, -3, -1, 1, 2, 5)))
        assert LAZY[wanted] == PLAIN[wanted]
    assert type(LAZY[:]) is list


def test_equal_are_lists_and_receipts_that_say_the_same() -> None:
    split, _ = receipts(
        (0, AckRun(2, 5, 100, 1000, 1), SYNCED),
        (0, AckRun(3, 5, 101, 1001, 2), SYNCED),
        (0, AckRun(1, 6, 0, 1003, 1), SYNCED),
        (2, AckRun(9, 7, 40, 8, 4, is_duplicate=True), WRITTEN),
    )
    assert LAZY == PLAIN
    assert PLAIN == LAZY
    assert split == LAZY
    assert PLAIN[:-1] != LAZY
    assert [*PLAIN[:-1], PLAIN[0]] != LAZY
    assert tuple(PLAIN) != LAZY, "as a list"
    assert receipts()[0] == []
    assert not receipts()[0]
    with pytest.raises(TypeError, match="unhashable"):
        hash(LAZY)


def test_pickle_and_extending_a_list() -> None:
    assert pickle.loads(pickle.dumps(LAZY)) == PLAIN
    collected: list[Receipt] = []
    collected += LAZY
    assert collected == PLAIN
