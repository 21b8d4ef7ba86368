"""The line of pushes that wait: connections take turns, each connection's own stay in order."""

from __future__ import annotations

from typing import cast

from quiver_actors.base.protocol.messages import Push
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.waiting import Waiting, WaitingLine


def session() -> Session:
    """Only its identity counts."""
    return cast(Session, object())


def waiting(of: Session, tag: int, since_ns: int = 0, until_ns: int = 0) -> Waiting:
    return Waiting(of, Push(tag, "topic", 0, 1, 1, b"", b"", b""), None, since_ns, until_ns)


def tags(line: WaitingLine) -> list[int]:
    """All of them, in the order in which they are served."""
    found = []
    while line.count:
        found.append(line.take().request.tag)
    return found


def test_connections_take_turns_however_many_pushes_each_has() -> None:
    line, busy, modest = WaitingLine(), session(), session()
    for tag in range(5):
        line.append(waiting(busy, tag))
    line.append(waiting(modest, 100))
    line.append(waiting(modest, 101))
    assert line.count == 7
    assert tags(line) == [0, 100, 1, 101, 2, 3, 4]


def test_who_is_next_stays_next_until_it_is_taken() -> None:
    line, large, small = WaitingLine(), session(), session()
    line.append(waiting(large, 1))
    for tag in range(2, 5):
        line.append(waiting(small, tag))
    assert [line.next.request.tag for _ in range(3)] == [1, 1, 1]
    assert line.take().request.tag == 1


def test_those_that_have_waited_long_enough_are_taken_out_and_the_others_keep_their_order() -> None:
    line, first, second = WaitingLine(), session(), session()
    for tag, (of, until_ns) in enumerate([(first, 10), (first, 30), (second, 20), (first, 10), (second, 40)]):
        line.append(waiting(of, tag, since_ns=tag + 1, until_ns=until_ns))
    assert (line.oldest_since_ns, line.next_until_ns) == (1, 10)
    assert sorted(each.request.tag for each in line.take_where(lambda each: each.until_ns <= 20)) == [0, 2, 3]
    assert (line.count, line.oldest_since_ns, line.next_until_ns) == (2, 2, 30)
    assert tags(line) == [1, 4]


def test_an_empty_line_has_no_deadline() -> None:
    line = WaitingLine()
    assert (line.count, line.oldest_since_ns, line.next_until_ns) == (0, 0, None)
    assert line.take_where(lambda each: True) == []
