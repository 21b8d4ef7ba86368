"""The SQL statements of other hosts: so many at a time, of one token one less, each with its share of the memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver_actors.base.config.tree import ServeSettings
from quiver_actors.base.rights import Caller, TokenHolder
from quiver_actors.base.units import GIB, MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import QuotaExceeded, UsageError
from quiver_actors.flight.statements import Statements
from quiver_actors.query.limits import SqlLimits

ANN, BEN, CAT = (TokenHolder(name, Caller.READ, frozenset()) for name in ("ann", "ben", "cat"))


def statements(wait_seconds: float = 0.0, timeout_ns: int = 3600 * SECOND_NS, places: int = 2) -> Statements:
    settings = ServeSettings(sql_memory_bytes=GIB, sql_statements=places, sql_timeout_ns=timeout_ns)
    return Statements(settings, wait_seconds)


def rows(limits: SqlLimits) -> pa.RecordBatchReader:
    return pa.table({"n": [1, 2]}).to_reader(1)


def refuse(limits: SqlLimits) -> pa.RecordBatchReader:
    raise UsageError("wrong")


def test_places_are_shared_between_tokens_and_come_free_with_the_rows() -> None:
    running = statements()
    assert running.limits.memory_bytes == GIB // 2
    first = running.run(ANN, rows)
    with pytest.raises(QuotaExceeded, match=r"1 SQL statements are under way, 1 of them of .*'ann'.*1 of one token"):
        running.run(ANN, rows)
    second = running.run(BEN, rows)
    with pytest.raises(QuotaExceeded, match=r"serve\.sql_statements"):
        running.run(CAT, rows)
    assert second.read_all().num_rows == 2
    third = running.run(CAT, rows)
    third.read_next_batch()
    del first, third
    assert running.run(ANN, rows).read_all().num_rows == running.run(CAT, rows).read_all().num_rows == 2


def test_a_statement_that_fails_keeps_no_place() -> None:
    running = statements(places=1)
    for _ in range(2):
        with pytest.raises(UsageError, match="wrong"):
            running.run(ANN, refuse)
    assert running.run(ANN, rows).read_all().num_rows == 2


def test_whoever_stops_to_read_keeps_no_place_after_the_time() -> None:
    running = statements(wait_seconds=60, timeout_ns=MILLISECOND_NS, places=1)
    stalled = running.run(ANN, rows)
    assert running.run(BEN, rows).read_all().num_rows == 2
    assert stalled.schema
