"""What an envelope carries, and that nobody who adds to it takes away what others put there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver_actors.base.envelope import TRACE_CHARACTERS_MAX, parse_trace, trace_in, with_trace
from quiver_actors.errors import UsageError
from quiver_actors.store.staged.keys import key_in, with_key
from quiver_actors.store.subscriber.dead_letters import Origin, envelope_of, restored

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
HEADERS = {"traceparent": PARENT, "tracestate": "rojo=1,congo=t61rcWkgMzE", "baggage": "user=anna"}


def test_a_traceparent_alone_is_a_trace_context_and_none_or_nothing_is_none() -> None:
    assert parse_trace(PARENT) == {"traceparent": PARENT}
    assert parse_trace(HEADERS) == HEADERS
    assert parse_trace(None) == parse_trace({}) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        PARENT.upper(),
        PARENT[:-1],
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        PARENT + "\n",
        {"traceparent": PARENT, "x-b3-traceid": TRACE},
        {"tracestate": "a=1"},
        {"traceparent": PARENT, "tracestate": "a=1\n"},
        {"traceparent": PARENT, "tracestate": ""},
        {"traceparent": PARENT, "baggage": "x" * (TRACE_CHARACTERS_MAX + 1)},
        {"traceparent": 7},
    ],
)
def test_what_is_no_trace_context_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError):
        parse_trace(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        pa.record_batch({"labels": ["a", "b"]}),
        pa.record_batch({"labels": pa.array([], pa.string())}),
        pa.record_batch({"quiver.traceparent": ["an older one"], "labels": ["a"]}),
    ],
    ids=["none", "rows", "no rows", "another trace"],
)
def test_a_trace_context_is_read_as_it_was_put_in(envelope: pa.RecordBatch | None) -> None:
    found = with_trace(envelope, HEADERS)
    assert trace_in(found) == HEADERS
    if envelope is not None and envelope.num_rows:
        assert found.column("labels").equals(envelope.column("labels"))


def test_trace_key_and_dead_letter_live_in_one_envelope() -> None:
    pushed = with_key(with_trace(None, HEADERS), "p", 9)
    letter = envelope_of(Origin("clicks", 0, 1, 2, "s", 3), pushed)
    assert trace_in(letter) == HEADERS
    assert key_in(letter) == ("p", 9)
    assert restored({0: pa.record_batch({"x": [1]}), 63: letter})[63].equals(pushed)


@pytest.mark.parametrize(
    "envelope",
    [
        pa.record_batch({"labels": ["a"]}),
        pa.record_batch({"quiver.traceparent": pa.array([], pa.string())}),
        pa.record_batch({"quiver.traceparent": pa.array([None], pa.string())}),
        pa.record_batch({"quiver.traceparent": [7], "quiver.tracestate": ["a=1"]}),
        pa.record_batch({"quiver.traceparent": ["no trace"], "quiver.tracestate": ["a=1"]}),
    ],
)
def test_what_a_producer_put_there_by_hand_and_is_none_is_not_there(envelope: pa.RecordBatch) -> None:
    assert trace_in(envelope) == {}
