"""Which notice comes next, and when one is taken back, against looking at all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.store.subscriber.gaps import GapLedger, GapNotice, decode_gaps

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "give", "ack", "release", "due", "withdraw", "reload"]),
        st.integers(0, 5),
        st.integers(0, 20),
    ),
    max_size=40,
)


def free(ledger: GapLedger) -> list[GapNotice]:
    return [notice for notice in ledger if not notice.is_told and notice.owner is None]


def given_out(ledger: GapLedger) -> list[GapNotice]:
    return [notice for notice in ledger if not notice.is_told and notice.owner is not None]


@given(STEPS)
def test_next_notice_and_next_time_are_those_of_a_search(steps: list[tuple[str, int, int]]) -> None:
    ledger, now = GapLedger(), 0
    for what, which, number in steps:
        notices = list(ledger)
        if what == "add":
            ledger.add(which, number, 1, -1, "evicted", 0)
        elif what == "give" and (notice := ledger.next_untold()) is not None:
            ledger.give(notice, which, now + number if number else 0)
        elif what == "ack" and notices:
            ledger.ack(notices[number % len(notices)].notice)
        elif what == "release":
            held = any(notice.owner == which for notice in given_out(ledger))
            assert ledger.release(which) == held
        elif what == "due":
            now += number
            late = any(0 < notice.retry_ns <= now for notice in given_out(ledger))
            assert ledger.due(now) == late
        elif what == "withdraw" and notices:
            ledger.withdraw(notices[number % len(notices)].notice)
        elif what == "reload":
            ledger = decode_gaps(ledger.encode(0, with_withdrawn=False))
        first = ledger.next_untold()
        assert (first and first.position) == min((notice.position for notice in free(ledger)), default=None)
        times = [notice.retry_ns for notice in given_out(ledger) if notice.retry_ns]
        assert ledger.next_due_ns() == min(times, default=None)
        assert ledger.untold_count == sum(not notice.is_told for notice in ledger)
