"""What a SQL statement may use: memory, and time until its last row has been read; then it ends, wherever it is."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pyarrow as pa
import pytest

from quiver_actors import Store
from quiver_actors.base.units import GIB, MIB
from quiver_actors.errors import QueryLimit, UsageError
from quiver_actors.query.limits import SqlLimits, Statement
from tests.unit.node.worker.harness import until

ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b"
MANY_ROWS = "SELECT range AS n FROM range(1000000000)"


def watchers() -> int:
    return sum(thread.name == "quiver-sql-time" for thread in threading.enumerate())


def test_a_statement_that_computes_for_too_long_is_ended(store: Store) -> None:
    with pytest.raises(QueryLimit, match=r"longer than the 0\.1 s .*serve\.sql_timeout.*ask for less"):
        store.sql(ENDLESS, limits=SqlLimits(GIB, 0.1)).read_all()
    with pytest.raises(QueryLimit, match="longer than"):
        store.sql(f"EXPLAIN ANALYZE {ENDLESS}", limits=SqlLimits(GIB, 0.1)).read_all()
    until(lambda: not watchers(), "no thread is left")


def test_rows_that_are_read_for_too_long_end(store: Store) -> None:
    reader = store.sql(MANY_ROWS, limits=SqlLimits(GIB, 0.1))
    with pytest.raises(QueryLimit, match="longer than"):
        for _ in reader:
            pass


def test_a_statement_in_time_is_not_touched(store: Store) -> None:
    reader = store.sql("SELECT range AS n FROM range(200000)", limits=SqlLimits(GIB, 600))
    assert reader.read_all().num_rows == 200_000
    dropped = store.sql(MANY_ROWS, limits=SqlLimits(GIB, 600))
    dropped.read_next_batch()
    assert watchers()
    del dropped
    until(lambda: not watchers(), "the thread of dropped rows ends")
    for wrong in ("SELEC 1", "SELECT * FROM nothing"):
        with pytest.raises(UsageError, match="duckdb cannot run"):
            store.sql(wrong, limits=SqlLimits(GIB, 600))
    until(lambda: not watchers(), "the thread of a wrong statement ends")


class Batches:
    """Rows of an engine, of which nothing is left once they are let go."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return pa.record_batch({"n": [1]})


def test_whoever_stops_to_read_holds_no_rows_of_the_engine_after_the_time() -> None:
    batches = Batches()
    gone = weakref.ref(batches)
    made = [pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), batches)]
    found = Statement(SqlLimits(MIB, 0.05), lambda: None).begin(made.pop)
    assert found.read_next_batch().num_rows == 1
    del batches
    until(lambda: gone() is None, "the rows are let go")
    with pytest.raises(QueryLimit):
        found.read_next_batch()


def test_a_statement_that_needs_too_much_memory_says_how_much_it_may_use(store: Store) -> None:
    hungry = "SELECT range FROM range(100000000) ORDER BY hash(range)"
    with pytest.raises(QueryLimit, match=r"more than the 32\.0 MiB of memory.*\(the test\): ask for fewer"):
        store.sql(hungry, limits=SqlLimits(32 * MIB, 0, "the test")).read_all()


def test_the_engine_without_a_clock_refuses_a_time_limit(store: Store) -> None:
    with pytest.raises(UsageError, match="needs the engine duckdb"):
        store.sql("SELECT 1", engine="datafusion", limits=SqlLimits(GIB, 1))
