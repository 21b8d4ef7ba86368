"""The SQL statements that other hosts run at a node: how many at a time, and what each may use.

Guarantees
- All statements together use no more memory than `serve.sql_memory`: each has an equal share, and there are no more than shares.
- One token leaves a share to the others, if there is more than one.
- A statement ends with its time, also where its caller has stopped to read.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from quiver_actors.base.config.tree import ServeSettings
from quiver_actors.base.rights import TokenHolder
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import QuotaExceeded
from quiver_actors.query.limits import SqlLimits, machine_memory_bytes

WAIT_SECONDS = 30.0
"""How long a statement waits for others to end."""
_MEMORY_SHARE = 4
_LOOK_SECONDS = 0.25
_ENDING_SECONDS = 0.5
"""How long an engine may take to notice that the time of its statement is over."""


class Statements:
    """The statements that are under way at one server. Several threads may call its methods."""

    def __init__(self, settings: ServeSettings, wait_seconds: float = WAIT_SECONDS) -> None:
        memory_bytes = settings.sql_memory_bytes or machine_memory_bytes() // _MEMORY_SHARE
        self.limits = SqlLimits(
            memory_bytes // settings.sql_statements,
            settings.sql_timeout_ns / SECOND_NS,
            f"serve.sql_memory of the server, shared by serve.sql_statements = {settings.sql_statements}",
        )
        """What each statement may use."""
        self._places = settings.sql_statements
        self._places_of_token = max(1, settings.sql_statements - 1)
        self._wait_seconds = wait_seconds
        self._running: dict[_Place, tuple[TokenHolder, float]] = {}
        """Whose each statement is, and when its time is over."""
        self._changed = threading.Condition()

    def run(self, holder: TokenHolder, run: Callable[[SqlLimits], pa.RecordBatchReader]) -> pa.RecordBatchReader:
        """Wait for a place, run a statement, and return its rows. The place is free when they are read or dropped.

        Raises:
            QuotaExceeded: no place came free in time.
            As `run`.
        """
        place = self._taken_place(holder)
        try:
            reader = run(self.limits)
        except BaseException:
            self._leave(place)
            raise
        return pa.RecordBatchReader.from_batches(reader.schema, _Rows(reader, partial(self._leave, place)))

    def _taken_place(self, holder: TokenHolder) -> _Place:
        deadline = time.monotonic() + self._wait_seconds
        with self._changed:
            while True:
                now = time.monotonic()
                holders = self._holders(now)
                of_token = holders.count(holder)
                if len(holders) < self._places and of_token < self._places_of_token:
                    break
                if now >= deadline:
                    raise QuotaExceeded(
                        f"{len(holders)} SQL statements are under way, {of_token} of them of {holder}, and none has ended within "
                        f"{self._wait_seconds:g} s: the server runs {self._places} at a time (serve.sql_statements), and "
                        f"{self._places_of_token} of one token. Read the rows of others to their end or drop them, and call again"
                    )
                self._changed.wait(min(deadline - now, _LOOK_SECONDS))
            place = _Place()
            self._running[place] = holder, now + (self.limits.timeout_seconds or math.inf)
        return place

    def _holders(self, now: float) -> list[TokenHolder]:
        """Return the holders of the statements that are under way.

        A statement whose time is over counts no more: it holds no memory, and its caller has stopped to read.
        """
        for place, (_, until) in list(self._running.items()):
            if until + _ENDING_SECONDS < now:
                self._running.pop(place, None)
        return [holder for holder, _ in list(self._running.values())]

    def _leave(self, place: _Place) -> None:
        with self._changed:
            self._running.pop(place, None)
            self._changed.notify_all()


class _Place:
    """One statement that is under way."""


class _Rows:
    """The rows of a statement; tells when they are read or dropped."""

    def __init__(self, reader: pa.RecordBatchReader, tell: Callable[[], None]) -> None:
        self._reader = reader
        self._tell = weakref.finalize(self, tell)
        self._tell.atexit = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return self._reader.read_next_batch()
        except BaseException:
            self._tell()
            raise
