"""What a SQL statement may use: memory, and time from its start until its last row has been read."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from quiver_actors.base.units import format_size
from quiver_actors.errors import QueryLimit

T = TypeVar("T")
_MEMORY_SHARE = 4
"""An engine may use the machine's memory divided by this: it runs beside the workers, and spills nothing to files."""
_AGAIN_SECONDS = 0.05
"""An interrupt that falls between two steps of an engine is lost, so it is repeated."""


class SqlLimits(NamedTuple):
    """How much memory and time one SQL statement may use."""

    memory_bytes: int
    timeout_seconds: float = 0.0
    """0: it may take as long as it likes."""
    told_by: str = "a quarter of this machine's"
    """Where the memory limit comes from, for messages."""

    def out_of_memory(self) -> QueryLimit:
        """Return the error of a statement that needs more memory."""
        return QueryLimit(
            f"the statement needs more than the {format_size(self.memory_bytes)} of memory that it may use ({self.told_by}): ask for "
            "fewer columns, rows or groups, or put a LIMIT behind ORDER BY"
        )

    def out_of_time(self) -> QueryLimit:
        """Return the error of a statement that takes longer."""
        return QueryLimit(
            f"the statement and the reading of its rows took longer than the {self.timeout_seconds:g} s that they may take "
            "(serve.sql_timeout of the server): ask for less, such as a shorter span of _quiver_ingestion_time, or read a dataset, "
            "which has no such limit"
        )


def machine_memory_bytes() -> int:
    """Return how much memory the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def local_limits() -> SqlLimits:
    """Return the limits of a statement in the caller's own process."""
    return SqlLimits(machine_memory_bytes() // _MEMORY_SHARE)


class Statement:
    """One statement that an engine computes under limits, in the threads that read its rows.

    When its time is over, a thread interrupts what is being computed. Where nobody is reading, the thread lets go of the engine's rows,
    so a caller that has stopped to read holds no memory of the engine.
    """

    def __init__(self, limits: SqlLimits, interrupt: Callable[[], Any]) -> None:
        """`interrupt` ends what the engine computes; called from another thread, and again until it has ended."""
        self._limits = limits
        self._interrupt = interrupt
        self._computing = threading.Lock()
        self._ended = threading.Event()
        self._is_over = False
        self._rows: pa.RecordBatchReader | None = None
        if limits.timeout_seconds:
            threading.Thread(target=self._watch, name="quiver-sql-time", daemon=True).start()

    def begin(self, run: Callable[[], pa.RecordBatchReader]) -> pa.RecordBatchReader:
        """Begin by `run`, and return the rows, which end the statement when they are read or dropped.

        Raises:
            QueryLimit: its time is over; also while rows are read.
            As `run`.
        """
        try:
            self._rows = self._compute(run)
        except BaseException:
            self.end()
            raise
        return pa.RecordBatchReader.from_batches(self._rows.schema, _Rows(self))

    def next_batch(self) -> pa.RecordBatch:
        """Return the next rows. Raises StopIteration where there are no more, and QueryLimit."""
        return self._compute(self._read_on)

    def end(self) -> None:
        """End the watch over the time."""
        self._ended.set()

    def _read_on(self) -> pa.RecordBatch:
        if self._rows is None:
            raise StopIteration
        return self._rows.read_next_batch()

    def _compute(self, call: Callable[[], T]) -> T:
        with self._computing:
            if self._is_over:
                raise self._limits.out_of_time()
            try:
                return call()
            except StopIteration:
                self.end()
                raise
            except Exception as error:
                if self._is_over:
                    raise self._limits.out_of_time() from error
                raise

    def _watch(self) -> None:
        if self._ended.wait(self._limits.timeout_seconds):
            return
        self._is_over = True
        while not self._computing.acquire(timeout=_AGAIN_SECONDS):
            self._interrupt()
        self._rows = None
        self._computing.release()


class _Rows:
    """The rows of a statement; whoever drops them ends it."""

    def __init__(self, statement: Statement) -> None:
        self._statement = statement
        weakref.finalize(self, statement.end).atexit = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self._statement.next_batch()
