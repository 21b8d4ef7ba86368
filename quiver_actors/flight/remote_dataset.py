"""A slot of a topic of another host as a `pyarrow.dataset.Dataset`: the surface of `query.dataset.TopicDataset`, through Flight.

Guarantee: the node keeps the snapshot, so that scans read the same rows. Where the node has forgotten it, a scan raises ClosedError and
gives no other rows. The columns that a scan names and its filter travel to the node, as far as Substrait can say the filter; it is applied
here once more.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from quiver_actors.base.conform import conform
from quiver_actors.base.notebook import table_html
from quiver_actors.errors import QuiverError, UsageError
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import FlightConnection
from quiver_actors.flight.contract import Done, schema_of
from quiver_actors.query.fragments import PartFragment
from quiver_actors.query.scan import both, scanner_of
from quiver_actors.query.segment_files import segment_file_system

_WHOLE = "rows"
"""The one part of a remote dataset."""

Read = Callable[[bytes], Iterator[pa.RecordBatch]]
"""Reads the batches of a ticket of `DoGet`."""


class OpenDatasets:
    """The snapshots that a client has at the node. Any number of threads may call its methods."""

    def __init__(self, connection: FlightConnection, timeout_seconds: float, read: Read) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self._read = read
        self._open: weakref.WeakSet[Keeping] = weakref.WeakSet()
        self._forgotten: deque[str] = deque()
        """Ids of those that nobody has any more, of which the node has not been told."""

    def open(self, request: rc.OpenDataset, where: Any) -> RemoteDataset:
        """Have the node take a snapshot. `where`: an expression, or None. Raises as `RemoteClient.dataset`."""
        both(None, where)
        self.tell()
        opened = self._connection.ask(request, rc.OpenedDataset, self._timeout_seconds)
        # A snapshot that is let go of may be so at any place of the program, where no request can be made: the next one tells.
        keeping = Keeping(opened, request.topic, self._read, self._forgotten.append)
        self._open.add(keeping)
        return RemoteDataset(keeping, self, schema_of(opened.schema), where)

    def tell(self) -> None:
        """Tell the node which snapshots nobody has any more. Does not raise: it forgets them by itself in time."""
        datasets = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        if datasets:
            with contextlib.suppress(QuiverError):
                self._connection.ask(rc.CloseDatasets(datasets), Done, self._timeout_seconds)

    def close(self) -> None:
        """Have the node forget all snapshots of this client."""
        for keeping in list(self._open):
            keeping.end()
        self.tell()


class Keeping:
    """One snapshot at the node, shared by the datasets that are made of it. It has ended when the last of them is gone."""

    def __init__(self, opened: rc.OpenedDataset, topic: str, read: Read, end: Callable[[str], object]) -> None:
        """`end` is called with the id of the dataset, once."""
        self.opened = opened
        self.topic = topic
        self.full = schema_of(opened.full_schema)
        self.failures: list[QuiverError] = []
        self._read = read
        self.end = weakref.finalize(self, end, opened.dataset)

    def batches(self, schema: pa.Schema, where: bytes | None) -> Iterator[pa.RecordBatch]:
        """Read the rows in a schema that the stored ones conform to. Raises as `RemoteClient.sql` while rows are read."""
        names = [name for name in schema.names if name in self.full.names]
        try:
            for batch in self._read(msgspec.json.encode(rc.ScanTicket(self.opened.dataset, names, where))):
                yield conform(batch, schema)
        except QuiverError as error:
            self.failures.append(error)
            raise


class RemoteDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """Made by `RemoteClient.dataset`. A context manager: at its end the node forgets the snapshot."""

    def __init__(
        self, keeping: Keeping, datasets: OpenDatasets, schema: pa.Schema, where: pc.Expression | None = None
    ) -> None:
        """
        Args:
            datasets: those of the client.
            schema: what a scan gives by default.
            where: rows that are left out of every scan are those for which this is not true.
        """
        self._keeping = keeping
        self._datasets = datasets
        self._where = where
        self._full = full = pa.schema([*schema, *(field for field in keeping.full if field.name not in schema.names)])
        shown = schema.names

        def whole(_path: str) -> pa.Table:
            return _scanner(keeping, full, shown, where, {}).to_table().unify_dictionaries()

        # For what Arrow does in C++, which knows files only. Without this dataset, which would be in a circle that nothing finds.
        files = segment_file_system(whole, [_WHOLE])
        form = ds.IpcFileFormat()
        super().__init__([form.make_fragment(_WHOLE, filesystem=files)], schema, form, files)

    @property
    def slot_id(self) -> int:
        """The slot that it is of."""
        return self._keeping.opened.slot_id

    @property
    def is_complete(self) -> bool:
        """Whether everything that had been acknowledged is in it; see `TopicDataset.is_complete`."""
        return self._keeping.opened.is_complete

    @property
    def failure(self) -> QuiverError | None:
        """What the last failed scan raised, for callers to whom it came as a text only."""
        return next(reversed(self._keeping.failures), None)

    def scanner(
        self, columns: Sequence[str] | Mapping[str, pc.Expression] | None = None, filter: Any = None, **options: Any
    ) -> ds.Scanner:
        """Make a scanner, which can be used once. Arguments as of `TopicDataset.scanner`.

        Raises:
            ClosedError: while rows are read: the node has forgotten the snapshot.
            WorkerUnavailable: while rows are read: the connection was lost; a new scan reads the same rows, if the node still has them.
            As `TopicDataset.scanner`.
        """
        names = self.schema.names if columns is None else columns
        return _scanner(self._keeping, self._full, names, self._wanted(filter), options)

    def get_fragments(self, filter: Any = None) -> Iterator[PartFragment[str]]:
        """The rows as one fragment."""
        self._wanted(filter)
        return iter([PartFragment(self, _WHOLE)])

    def scan_part(
        self, part: str, columns: Any = None, filter: Any = None, options: Mapping[str, Any] = {}
    ) -> ds.Scanner:
        """Make a scanner of all rows; see `scanner`."""
        return self.scanner(columns, filter, **options)

    def read_part(
        self, part: str, columns: Any = None, filter: Any = None, options: Mapping[str, Any] = {}
    ) -> pa.RecordBatchReader:
        """Read all rows as batches; see `scanner`."""
        return self.scanner(columns, filter, **options).to_reader()

    def guarantee_of(self, part: str) -> pc.Expression:
        """Return an expression that is true for all rows: nothing is known of them here."""
        return pc.scalar(value=True)

    def filter(self, expression: Any) -> RemoteDataset:
        """The same snapshot without the rows for which the expression is not true."""
        return RemoteDataset(self._keeping, self._datasets, self.schema, self._wanted(expression))

    def replace_schema(self, schema: pa.Schema) -> RemoteDataset:
        """The same snapshot in another schema: stored columns by name in the given types, null where nothing is stored."""
        return RemoteDataset(self._keeping, self._datasets, schema, self._where)

    def close(self) -> None:
        """Have the node forget the snapshot, also of the datasets that were made of this one. Idempotent."""
        self._keeping.end()
        self._datasets.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """All rows, for any library that takes Arrow streams."""
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> NoReturn:
        raise UsageError("a dataset of another host cannot be pickled: make another one in the other process")

    def __repr__(self) -> str:
        opened = self._keeping.opened
        return f"<RemoteDataset topic={self._keeping.topic} slot={opened.slot_id} segments={opened.segment_count}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: how much of which topic it is, and its columns. No row is read."""
        opened = self._keeping.opened
        title = f"Dataset of topic {self._keeping.topic}, slot {opened.slot_id}: {opened.segment_count:,} segments"
        return table_html(title, ("column", "type"), ((field.name, field.type) for field in self.schema))

    def _wanted(self, expression: Any) -> pc.Expression | None:
        return both(self._where, expression)


def _scanner(
    keeping: Keeping, full: pa.Schema, columns: Any, wanted: pc.Expression | None, options: Mapping[str, Any]
) -> ds.Scanner:
    where = _travelling(wanted, full, keeping.full)
    return scanner_of(lambda schema: keeping.batches(schema, where), full, columns, wanted, options)


def _travelling(wanted: pc.Expression | None, full: pa.Schema, stored: pa.Schema) -> bytes | None:
    """The condition for the node; None: it reads all rows, and they are filtered here."""
    # In another schema the same expression may mean something else: 1.5 is a text, or a number.
    if wanted is None or any(field != stored.field(field.name) for field in full if field.name in stored.names):
        return None
    if any(field.name not in stored.names for field in full):
        return None
    try:
        return bytes(wanted.to_substrait(stored))
    except (pa.ArrowException, NotImplementedError, TypeError):
        return None
