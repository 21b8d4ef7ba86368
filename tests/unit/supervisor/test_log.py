"""Log lines as people and as programs read them, and what happens to floods."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from quiver_actors.supervisor.log import REPEAT_WINDOW_SECONDS, REPEATS_MAX, RepeatLimit, configure_logging, log_event


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(log_format: str, *, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(stream, level, log_format)
    return stream


def test_a_line_for_people() -> None:
    stream = logged("human")
    log_event("worker.start", {"worker": "core_0", "pid": 7, "why": 'it said "no"', "none": None})
    line = stream.getvalue()
    assert "level=INFO event=quiver.worker.start worker=core_0 pid=7" in line
    assert line.endswith('why="it said \\"no\\""\n')


def test_times_of_people_carry_their_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        stream = logged("human")
        log_event("worker.start", {})
        stamp = stream.getvalue().split()[0].removeprefix("ts=")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert stamp.endswith("+05:30")
    assert abs(datetime.fromisoformat(stamp).timestamp() - time.time()) < 60


def test_a_line_for_programs() -> None:
    stream = logged("json")
    log_event("wal.rotate", {"worker": "core_0", "bytes": 12, "none": None}, logging.WARNING)
    logging.getLogger("somebody.else").warning("they said %s", "this\nand that")
    rotate, other = (json.loads(line) for line in stream.getvalue().splitlines())
    assert rotate.pop("ts").endswith("Z")
    assert rotate == {"level": "warning", "event": "quiver.wal.rotate", "worker": "core_0", "bytes": 12}
    assert (other["event"], other["message"]) == ("quiver.log", "they said this\nand that")


def test_a_traceback_stays_in_its_line() -> None:
    stream = logged("json")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("quiver").exception("oops")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["traceback"]


def test_lower_levels_are_left_out() -> None:
    stream = logged("human", level="warning")
    log_event("worker.start", {})
    log_event("worker.hung", {}, logging.WARNING)
    assert [line.split("event=")[1] for line in stream.getvalue().splitlines()] == ["quiver.worker.hung"]


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(event: str | None, level: int = logging.WARNING, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("quiver", level, "", 0, "", None, None)
    if event is not None:
        made.event, made.fields = event, fields
    return made


def test_repeats_are_limited_and_counted() -> None:
    clock = _Clock()
    limit = RepeatLimit(clock)
    passed = [limit.filter(record("full", topic="a")) for _ in range(REPEATS_MAX + 5)]
    assert passed == [True] * REPEATS_MAX + [False] * 5
    clock.now += REPEAT_WINDOW_SECONDS
    after = record("full", topic="a")
    assert limit.filter(after)
    assert after.suppressed == 5  # type: ignore[attr-defined]
    again = record("full", topic="a")
    assert limit.filter(again)
    assert not hasattr(again, "suppressed")


def test_other_subjects_errors_and_foreign_lines_are_no_repeats() -> None:
    limit = RepeatLimit(_Clock())
    for _ in range(REPEATS_MAX + 1):
        limit.filter(record("full", topic="a"))
    assert not limit.filter(record("full", topic="a"))
    assert limit.filter(record("full", topic="b"))
    assert limit.filter(record("full", level=logging.ERROR, topic="a"))
    assert all(limit.filter(record(None)) for _ in range(3 * REPEATS_MAX))


def test_the_count_is_said_in_both_formats() -> None:
    for log_format in ("human", "json"):
        stream = io.StringIO()
        configure_logging(stream, "info", log_format)
        (handler,) = logging.getLogger().handlers
        clock = _Clock()
        handler.filters[:] = [RepeatLimit(clock)]
        for _ in range(REPEATS_MAX + 2):
            log_event("turn", {})
        clock.now += REPEAT_WINDOW_SECONDS
        log_event("turn", {})
        last = stream.getvalue().splitlines()[-1]
        assert "suppressed=2" in last or json.loads(last)["suppressed"] == 2
