"""`quiver export`: what a topic has stored, as Parquet or Arrow files that any reader opens."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from quiver_actors.cli import archives, run_dir
from quiver_actors.cli.older_bundles import older_segments, runs_between
from quiver_actors.cli.progress_bar import ProgressBar
from quiver_actors.cli.times import moment, unix_ns
from quiver_actors.errors import DataLost, FormatError, NotStored, UnsupportedType, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from quiver_actors.archive.reading.archive import Archive
    from quiver_actors.base.protocol.messages import SegmentInfo
    from quiver_actors.client import Client

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SCHEMA_VERSION = 1
DAMAGE = 5
_NOT_IN_NAMES = str.maketrans("/\0", "__")

_DESCRIPTION = """\
Write all durable bundles of a topic to files, sealed or not: one for each slot and schema, named <topic>-<slot>.<format>. Rows are in
the order of the bundles, core by core. A `/` in a slot becomes `_`; in Arrow files dictionary columns become those of their values. It
takes nothing from subscribers. A file has its name only once it is whole. Bundles that are damaged or lost are left out and counted.

With --archive it writes what a node has archived in an object store, and no node needs to run.
"""
_EPILOG = """\
examples:
  quiver export travel --out exported
  quiver export travel --slot flights --format arrow --flush --out exported
  quiver export travel --archive file:///var/lib/quiver-archive --node worker-7 --out restored

exit codes:
  0    everything that is durable was exported
  1    unexpected error
  2    wrong arguments, no such topic or slot, a file that exists already, or a type that the format cannot hold
  3    not running
  5    bundles that are damaged or lost are left out; the others were exported
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver export` with its options to the command line."""
    parser = subparsers.add_parser(
        "export",
        help="write a topic as Parquet or Arrow files",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    run_dir.add_data_dir(parser)
    archives.add_options(parser, "export from")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--out", metavar="DIR", default=".", help="where the files go; created if it is missing (.)")
    parser.add_argument("--format", choices=("parquet", "arrow"), default="parquet", help="of the files (parquet)")
    parser.add_argument(
        "--slot", metavar="SLOT", action="append", help="only this slot, by name or number; may be repeated"
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="TIME",
        type=moment,
        help="only what was ingested since, archived bundles included",
    )
    parser.add_argument(
        "--flush",
        action="store_true",
        help="seal what is open first: needed only where pushes are acknowledged before their sync",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises UnknownTopic, UnknownSlot, UsageError, UnsupportedType, NotRunning, ArchiveError."""

    slots = None if arguments.slot is None else [int(slot) if slot.isdecimal() else slot for slot in arguments.slot]
    _make_directory(arguments.out)
    with _opened(arguments) as client, ExitStack() as held:
        ranges = [each for each in _ranges(client, arguments) if each.segments]
        bar = held.enter_context(ProgressBar(sum(each.size_bytes for each in ranges)))
        files = held.enter_context(Files(arguments.out, arguments.topic, arguments.format))
        missing = lost = 0
        for each in ranges:
            found = export_range(client, arguments.topic, each, slots, files)
            lost, missing = lost + found.lost_bundles, missing + found.deleted_segments
            bar.advance(each.size_bytes)
        files.finish()
    _report(arguments, files, missing, lost)
    return DAMAGE if lost else 0


class Range(NamedTuple):
    """Segments of one core that are read together, and the time from which on their bundles are wanted; 0: all are."""

    core: int
    segments: list[SegmentInfo]
    since_unix_ns: int

    @property
    def size_bytes(self) -> int:
        """Size of the segments as stored."""
        return sum(info.size_bytes for info in self.segments)


def _ranges(client: Any, arguments: argparse.Namespace) -> Iterator[Range]:
    """Yield what is to be exported: the segments of the disk one by one, archived ones of a core together."""
    topic = arguments.topic
    readable = client.readable(topic)
    if arguments.start is None:
        yield from (Range(core, [info], 0) for core, found in readable.items() for info in found.infos)
        return
    since_unix_ns = unix_ns(arguments.start)
    older = older_segments(client, topic, since_unix_ns) if arguments.archive is None else {}
    for core, found in readable.items():
        on_disk = ([info] for info in found.infos if not 0 < info.last_ingestion_ts_nanos < since_unix_ns)
        runs = [*runs_between(older.get(core, ()), found.infos), *on_disk]
        yield from (Range(core, run, since_unix_ns) for run in sorted(runs, key=lambda run: run[0].segment_seq))


def _opened(arguments: argparse.Namespace) -> Client | Archive:
    """Open what is exported from; what the topic holds is sealed before if that is asked for."""
    if arguments.archive is not None and arguments.flush:
        raise UsageError("--archive reads what was archived: it does not go with --flush")
    archive = archives.opened_archive(arguments)
    if archive is not None:
        return archive
    client = run_dir.connect_to_node(arguments)
    if arguments.flush:
        client.flush(arguments.topic)
    return client


def _make_directory(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{path} is not a directory, and cannot become one: name another one with --out") from error


class LeftOut(NamedTuple):
    """What an export could not write."""

    lost_bundles: int = 0
    """Damaged or lost ones."""
    deleted_segments: int = 0
    """Every subscriber is done with them, or they have expired, and they were deleted meanwhile."""


def export_range(client: Any, topic: str, wanted: Range, slots: Any, files: Files) -> LeftOut:
    """Write the bundles of some segments. One that was deleted meanwhile is passed over."""
    left, lost, missing = list(wanted.segments), 0, 0
    while left:
        try:
            for bundle in _bundles(client, topic, wanted.core, left, slots):
                while left[0].segment_seq < bundle.bundle_id.segment_seq:
                    left.pop(0)
                lost += not _export_bundle(bundle, wanted.since_unix_ns, files)
                if bundle.bundle_id.bundle_index + 1 >= left[0].bundle_count:
                    left.pop(0)
            left.clear()
        except NotStored:
            missing += 1
            left.pop(0)
    return LeftOut(lost, missing)


def _bundles(client: Any, topic: str, core: int, segments: Sequence[SegmentInfo], slots: Any) -> Iterable[Any]:
    from quiver_actors.base.model import BundleId

    start = BundleId(topic, core, segments[0].segment_seq, 0)
    end = BundleId(topic, core, segments[-1].segment_seq, segments[-1].bundle_count)
    found: Iterable[Any] = client.read(topic, core, start, end, slots=slots)
    return found


def _export_bundle(bundle: Any, since_unix_ns: int, files: Files) -> bool:
    """Write a bundle, unless it is too old. Returns False if it is damaged or lost."""
    try:
        if 0 < (bundle.ingestion_unix_ns or 0) < since_unix_ns:
            return True
        found = bundle.slots
    except (DataLost, FormatError):
        return False
    for slot_id, batch in found.items():
        files.write(bundle.slot_table.name_of(slot_id) or str(slot_id), batch)
    return True


def _report(arguments: argparse.Namespace, files: Files, missing: int, lost: int) -> None:
    if arguments.json:
        import msgspec

        written = [{"file": path, "rows": rows} for path, rows in files.written.items()]
        document = {
            "schema_version": SCHEMA_VERSION,
            "topic": arguments.topic,
            "files": written,
            "deleted_segments": missing,
            "lost_bundles": lost,
        }
        print(msgspec.json.encode(document).decode())
        return
    for path, rows in files.written.items():
        print(f"{path}: {rows:,} rows")
    if missing:
        print(f"quiver: {missing} segments were deleted before they could be exported", file=sys.stderr)
    if lost:
        print(f"quiver: {lost} bundles are damaged or lost, and are left out", file=sys.stderr)
    if not files.written:
        where = f" in the slots {', '.join(arguments.slot)}" if arguments.slot else ""
        print(f"quiver: topic {arguments.topic} has nothing{where} that can be read; --flush seals what is open")


class Files:
    """The files of one export: written beside their names, renamed when all are whole. As a context manager it removes what is not."""

    def __init__(self, directory: str, topic: str, file_format: str) -> None:
        self.written: dict[str, int] = {}
        """Rows by path, of files that are whole."""
        self._directory = directory
        self._topic = topic
        self._format = file_format
        self._open: dict[tuple[str, pa.Schema], tuple[str, Any]] = {}
        self._rows: dict[str, int] = {}

    def write(self, slot: str, batch: pa.RecordBatch) -> None:
        """Add a batch to the file of its slot and schema, which is begun if needed."""
        key = (slot, batch.schema)
        if key not in self._open:
            self._open[key] = self._begin(slot, batch.schema)
        path, writer = self._open[key]
        self._write(slot, writer, batch)
        self._rows[path] += batch.num_rows

    def _write(self, slot: str, writer: Any, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        try:
            writer.write_batch(batch if self._format == "parquet" else batch.cast(_with_values(batch.schema)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnsupportedType(f"slot {slot}: {error}; use another --format") from error

    def _begin(self, slot: str, schema: pa.Schema) -> tuple[str, Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = next(path for path in self._paths(slot) if path not in self._rows)
        if os.path.exists(path):
            raise UsageError(f"{path} exists already: choose another directory with --out, or remove it")
        self._rows[path] = 0
        try:
            if self._format == "parquet":
                return path, pq.ParquetWriter(f"{path}.tmp", schema)
            return path, pa.ipc.new_file(f"{path}.tmp", _with_values(schema))
        except pa.ArrowNotImplementedError as error:
            raise UnsupportedType(f"slot {slot}: {error}; use --format arrow") from error

    def _paths(self, slot: str) -> Iterator[str]:
        """Yield the paths of a slot's files, one for each schema in order. Another slot may be called like a second one, or like a path."""
        slot = slot.translate(_NOT_IN_NAMES)
        for number in itertools.count(1):
            suffix = "" if number == 1 else f"-{number}"
            yield os.path.join(self._directory, f"{self._topic}-{slot}{suffix}.{self._format}")

    def finish(self) -> None:
        """Close all files and give them their names; `written` has the rows of each."""
        for path, writer in self._open.values():
            writer.close()
            os.replace(f"{path}.tmp", path)
            self.written[path] = self._rows[path]
        self._open.clear()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for path, writer in self._open.values():
            writer.close()
            os.unlink(f"{path}.tmp")
        for path in self._rows.keys() - self.written.keys():
            if os.path.exists(f"{path}.tmp"):
                os.unlink(f"{path}.tmp")


def _with_values(schema: pa.Schema) -> pa.Schema:
    """Dictionary columns as their values: an Arrow file holds one dictionary a column, and each bundle has its own."""
    import pyarrow as pa

    return pa.schema([field.with_type(_values_of(field.type)) for field in schema], metadata=schema.metadata)


def _values_of(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _values_of(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_values_of(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_values_of(key.type)), item.with_type(_values_of(item.type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_values_of(kind.value_type)))
    return kind
