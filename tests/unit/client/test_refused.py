"""Resolutions that a worker has refused."""

from __future__ import annotations

from array import array

from quiver_actors.base.protocol.messages import NotResolved, Refusal
from quiver_actors.client.refused import Refusals
from quiver_actors.errors import LeaseExpired


def not_resolved(tag: int, *indexes: int) -> NotResolved:
    return NotResolved(tag, "travel", "exporter", 4, 9, [Refusal(LeaseExpired.code, array("I", indexes).tobytes())])


def test_each_refusal_is_told_once_and_can_be_asked_about() -> None:
    refusals = Refusals(1, "travel", "exporter")
    refusals.note(not_resolved(3, 5, 6))
    told = refusals.take()
    assert [(each.bundle_id.core, each.bundle_id.segment_seq, each.bundle_id.bundle_index) for each in told] == [
        (1, 4, 5),
        (1, 4, 6),
    ]
    assert all(each.token == 9 and isinstance(each.error, LeaseExpired) for each in told)
    assert refusals.take() == []
    assert refusals.code_of(4, 9, 5) == LeaseExpired.code
    assert refusals.code_of(4, 9, 7) is None


def test_what_is_given_back_too_late_is_counted_and_not_told() -> None:
    refusals = Refusals(1, "travel", "exporter")
    refusals.ignore(3)
    refusals.note(not_resolved(3, 5))
    assert (refusals.count, refusals.take()) == (1, [])


def test_messages_are_not_ignored_for_ever() -> None:
    refusals = Refusals(1, "travel", "exporter")
    for tag in (3, 7):
        refusals.ignore(tag)
    refusals.answered(5)
    for tag in (3, 7):
        refusals.note(not_resolved(tag, tag))
    assert [each.bundle_id.bundle_index for each in refusals.take()] == [3]
