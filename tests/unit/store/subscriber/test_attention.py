"""The alarm that rings is always the next one, whatever happened since it was set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.store.subscriber.attention import Attention


class Due:
    def __init__(self) -> None:
        self.times: set[int] = set()

    def next_due_ns(self) -> int | None:
        return min(self.times, default=None)


@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "end", "later", "forget", "pass"]), st.integers(0, 3), st.integers(0, 30))
    )
)
def test_every_subject_is_called_when_its_first_time_has_come_and_never_forgotten(
    steps: list[tuple[str, int, int]],
) -> None:
    attention, subjects, now = Attention[Due](), [Due() for _ in range(4)], 0
    for what, which, at in steps:
        subject = subjects[which]
        if what == "begin":
            subject.times.add(now + 1 + at)
            attention.call_at(subject, now + 1 + at)
        elif what == "end" and subject.times:
            subject.times.remove(min(subject.times))
        elif what == "later":
            subject.times = {time + at for time in subject.times}
        elif what == "forget":
            attention.forget(subject)
            subject.times.clear()
        elif what == "pass":
            now += at
            late = {index for index, each in enumerate(subjects) if any(time <= now for time in each.times)}
            called = set()
            for each in attention.due(now):
                each.times = {time for time in each.times if time > now}
                called.add(subjects.index(each))
            assert called >= late
        expected = min((time for each in subjects for time in each.times), default=None)
        assert attention.next_due_ns() == expected


def test_an_alarm_that_was_set_earlier_since_rings_once() -> None:
    attention, subject = Attention[Due](), Due()
    subject.times = {5, 30}
    attention.call_at(subject, 10)
    attention.call_at(subject, 5)
    called = []
    for each in attention.due(20):
        called.append(each)
        each.times.discard(5)
    assert called == [subject]
    assert attention.next_due_ns() == 30
