"""Record batches out of a file or standard input, for `quiver push`: Parquet, Arrow, CSV, TSV and JSON lines. Reads as it goes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa

from quiver_actors.errors import UsageError

FORMATS = ("parquet", "arrow", "csv", "tsv", "jsonl")
_BY_SUFFIX = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}


class Counting(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, file: BinaryIO, note: Callable[[int], None]) -> None:
        super().__init__()
        self._file = file
        self._note = note

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Whether the file below is seekable."""
        return self._file.seekable()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move in the file below; what was counted stays counted."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Position in the file below."""
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer, and count the bytes."""
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._note(len(data))
        return len(data)


def read_batches(path: str, kind: str | None, rows: int, note: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    """The batches of a file (`-`: standard input), at most `rows` rows each.

    Args:
        kind: one of `FORMATS`; None: by the file's name, or by how it begins.
        note: told of every bytes that were read.

    Raises:
        UsageError: the format is not known, or the content is not of it.
        OSError: the file cannot be read.
    """
    with open_input(path) as file:
        kind = kind or _kind_of(path, file)
        source: io.BufferedReader = io.BufferedReader(cast(Any, Counting(file, note)), 1 << 20)
        try:
            for batch in _READERS[kind](source, rows):
                for first in range(0, batch.num_rows, rows):
                    yield batch.slice(first, rows)
        except pa.ArrowException as error:
            raise UsageError(f"{path} cannot be read as {kind}: {error}; name another format with --format") from error


def open_input(path: str) -> BinaryIO:
    """Open a file for reading; `-` is stdin, which is read whole first if it is a pipe."""
    if path != "-":
        return open(path, "rb")
    # What is seekable can be looked at before it is read; a pipe cannot.
    return sys.stdin.buffer if sys.stdin.buffer.seekable() else io.BytesIO(sys.stdin.buffer.read())


def _kind_of(path: str, file: BinaryIO) -> str:
    for suffix, kind in _BY_SUFFIX.items():
        if path.lower().endswith(suffix):
            return kind
    head = file.read(8)
    file.seek(0)
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if head.lstrip()[:1] == b"{":
        return "jsonl"
    raise UsageError(
        f"the format of {path} cannot be recognised by its name or its first bytes: give --format, one of {', '.join(FORMATS)}"
    )


def _parquet(file: io.BufferedReader, rows: int) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    yield from pq.ParquetFile(file).iter_batches(batch_size=rows)


def _arrow(file: io.BufferedReader, rows: int) -> Iterator[pa.RecordBatch]:
    del rows
    if file.peek(6)[:6] == b"ARROW1":
        reader = pa.ipc.open_file(file)
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        yield from pa.ipc.open_stream(file)


def _csv(file: io.BufferedReader, rows: int, delimiter: str = ",") -> Iterator[pa.RecordBatch]:
    import pyarrow.csv

    del rows
    yield from pyarrow.csv.open_csv(file, parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter))


def _tsv(file: io.BufferedReader, rows: int) -> Iterator[pa.RecordBatch]:
    return _csv(file, rows, "\t")


def _jsonl(file: io.BufferedReader, rows: int) -> Iterator[pa.RecordBatch]:
    import pyarrow.json

    del rows
    yield from pyarrow.json.open_json(file)


_READERS: dict[str, Callable[[io.BufferedReader, int], Iterator[pa.RecordBatch]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "tsv": _tsv,
    "jsonl": _jsonl,
}
