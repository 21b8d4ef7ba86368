"""Many flows are driven at a time, and their results come in their order; one that fails ends the others."""

from __future__ import annotations

import pytest

from quiver_actors.client.exchange import Flow, side_by_side


def driven(flow: Flow[list[int]]) -> list[int]:
    try:
        while True:
            next(flow)
    except StopIteration as stop:
        found: list[int] = stop.value
        return found


def test_some_flows_are_under_way_at_a_time_and_results_keep_their_order() -> None:
    under_way: set[int] = set()
    most = 0

    def counting(number: int) -> Flow[int]:
        nonlocal most
        under_way.add(number)
        most = max(most, len(under_way))
        for _ in range(5 - number % 3):
            yield number
        under_way.remove(number)
        return number

    assert driven(side_by_side((counting(number) for number in range(20)), 4)) == list(range(20))
    assert most == 4
    assert driven(side_by_side((), 4)) == []


def test_it_waits_for_the_first_that_may_go_on() -> None:
    def waiting(until_ns: int) -> Flow[int]:
        yield until_ns
        return until_ns

    flow = side_by_side([waiting(7), waiting(3), waiting(5)], 3)
    assert next(flow) == 3


def test_a_failure_closes_the_others() -> None:
    closed = []

    def endless(number: int) -> Flow[int]:
        try:
            while True:
                yield 0
        finally:
            closed.append(number)

    def failing() -> Flow[int]:
        yield 0
        raise ValueError("no more")

    flow = side_by_side([endless(1), failing(), endless(2)], 3)
    next(flow)
    with pytest.raises(ValueError, match="no more"):
        next(flow)
    assert closed == [1, 2]
