"""What the command of a flight asks: a statement alone, or with the times between which topics hold anything to it."""

from __future__ import annotations

import json

import msgspec
import pytest

from quiver_actors.errors import ProtocolError, UsageError
from quiver_actors.flight.contract import SqlTicket
from quiver_actors.flight.tables import asked_by, decoded_ticket

NOON_NS = 1_769_860_800_000_000_000


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("SELECT 1", SqlTicket("SELECT 1")),
        (" FROM travel.flights", SqlTicket(" FROM travel.flights")),
        ('{"sql": "SELECT 1"}', SqlTicket("SELECT 1")),
        ('{"sql": "SELECT 1", "start": null}', SqlTicket("SELECT 1")),
        (' {"sql": "SELECT 1", "start": "earliest"}', SqlTicket("SELECT 1", 0)),
        ('{"sql": "SELECT 1", "start": 7, "end": "9"}', SqlTicket("SELECT 1", 7, 9)),
        ('{"sql": "SELECT 1", "start": "2026-01-31T12:00Z"}', SqlTicket("SELECT 1", NOON_NS)),
        ('{"sql": "SELECT 1", "end": "2026-01-31T13:00+01:00"}', SqlTicket("SELECT 1", None, NOON_NS)),
    ],
)
def test_a_command_is_a_statement_or_an_object_with_times(command: str, asked: SqlTicket) -> None:
    assert asked_by(command.encode()) == asked


@pytest.mark.parametrize(
    "bound", ["", "yesterday", "2026-01-31", "2026-01-31T12:00", "-1", -1, 1 << 63, "9" * 5000, True, 1.5, ["earliest"]]
)
def test_a_time_that_is_none_is_refused(bound: object) -> None:
    for name in ("start", "end"):
        with pytest.raises(UsageError, match=r"is no time of a flight: expected 'earliest'|cannot be read: .*expected"):
            asked_by(json.dumps({"sql": "SELECT 1", name: bound}).encode())


@pytest.mark.parametrize(
    "command",
    ["{", "{}", '{"sql": 7}', '{"sql": "SELECT 1", "since": 7}', '{"start": "earliest"}', '{"sql": "SELECT 1"} x'],
)
def test_an_object_that_is_no_question_is_refused_with_the_form_that_is(command: str) -> None:
    with pytest.raises(UsageError, match=r'cannot be read: .* or a JSON object such as \{"sql"'):
        asked_by(command.encode())


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ProtocolError, match="no UTF-8"):
        asked_by(b"SELECT '\xff'")


@pytest.mark.parametrize(
    "ticket", [b"", b"{}", b'{"topic": 7}', msgspec.json.encode(SqlTicket("SELECT")).replace(b"SELECT", b"\xff")]
)
def test_bytes_that_are_no_ticket_are_none(ticket: bytes) -> None:
    assert decoded_ticket(ticket) is None
