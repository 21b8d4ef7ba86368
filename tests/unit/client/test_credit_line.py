"""How many bundles a worker may send ahead."""

from __future__ import annotations

from quiver_actors.client.credit_line import CreditLine


def test_credit_is_given_in_portions_of_half_the_prefetch() -> None:
    line = CreditLine(8)
    line.begin()
    assert line.give() == 8
    assert [line.take(1) for _ in range(4)] == [False, False, False, True]
    assert line.give() == 12
    assert line.give() == 12, "what is said again raises nothing"


def test_a_stopped_line_gives_no_credit_on_the_next_connection_either() -> None:
    line = CreditLine(8)
    line.begin()
    line.stop()
    assert line.give() == 0
    line.lose()
    line.begin()
    assert line.give() == 0


def test_what_was_taken_on_a_lost_connection_does_not_count_on_the_next() -> None:
    line = CreditLine(8)
    line.begin()
    line.give()
    line.take(3)
    line.lose()
    line.begin()
    assert line.give() == 8
