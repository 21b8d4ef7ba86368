"""Finds the stream of a segment that a bundle's dictionaries belong to.

An Arrow file holds at most one dictionary per id: two different ones are an error in pyarrow and silently wrong values in arrow-rs
and polars. So the streams of one schema differ in their dictionaries
(docs/formats.md section 6.2, "Dictionaries that grow"):

| the bundle's dictionaries, compared with those of a stream | outcome |
|---|---|
| all byte-equal | same stream, nothing to do |
| each equal or an extension of its counterpart as a prefix | same stream, which from now on refers to the bundle's |
| anything else | the next stream is tried, at last a new one is begun |

Byte equality is looked up over all streams (hash, then the bytes). Extension needs the values, so it is tried on the streams used
last only: a producer extends what it sent before. Growing dictionaries of a few interleaved producers stay one stream each. A
miss costs a stream, never correctness; compaction unifies them.

Owner: one SegmentBuilder. Memory: the dictionary bytes of at most `RECENT_STREAMS` streams a schema; others are read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import xxhash

from quiver_actors.store.segment.arrow_ipc import END_OF_STREAM

if TYPE_CHECKING:
    from typing_extensions import Buffer

RECENT_STREAMS = 8
MISSES_BEFORE_SAMPLING = 32
"""Number of bundles in a row without an extension after which only every 32nd is still compared: where each bundle brings its
own dictionary (OTAP), decoding and comparing would be four fifths of the cost, for nothing."""
KEPT_BYTES_MAX = 256 << 10

Read = Callable[[int, int], bytes]
"""`read(file_offset, length)`: bytes of the segment's entries, those not written yet included."""


class DictionaryPlacement(NamedTuple):
    """One dictionary message of a payload and where it stands in the file."""

    id: int
    is_delta: bool
    file_offset: int
    metadata_bytes: int
    body_bytes: int
    message: Buffer
    """The whole message; borrowed for the call."""


class DictionarySet:
    """The dictionaries that one stream refers to."""

    __slots__ = ("_arrays", "_messages", "digest", "placements", "stream_id")

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.placements: tuple[DictionaryPlacement, ...] = ()
        self.digest = b""
        self._messages: list[bytes] | None = None
        self._arrays: list[pa.Array] | None = None

    def refer_to(self, placements: Sequence[DictionaryPlacement], messages: list[bytes], digest: bytes) -> None:
        """Make `placements` the stream's dictionaries; `messages` are their bytes."""
        self.placements = tuple(placement._replace(message=b"") for placement in placements)
        self.digest = digest
        self._messages = messages if sum(map(len, messages)) <= KEPT_BYTES_MAX else None
        self._arrays = None

    def forget_bytes(self) -> None:
        """Free the dictionary bytes, which can be read back."""
        self._messages = self._arrays = None

    def messages(self, read: Read) -> list[bytes]:
        """The bytes of the dictionary messages."""
        if self._messages is not None:
            return self._messages
        return [read(place.file_offset, place.metadata_bytes + place.body_bytes) for place in self.placements]

    def arrays(self, read: Read, decoder: DictionaryDecoder) -> list[pa.Array] | None:
        """The values, in the order of the schema's fields; None if they cannot be decoded."""
        if self._arrays is not None:
            return self._arrays
        arrays = decoder.arrays(self.messages(read))
        if self._messages is not None:
            self._arrays = arrays
        return arrays


class SchemaDictionaries:
    """All streams of one schema that has dictionaries."""

    def __init__(self, schema_message: bytes, read: Read) -> None:
        self._read = read
        self._decoder = DictionaryDecoder(schema_message)
        self._by_digest: dict[bytes, DictionarySet] = {}
        self._recent: list[DictionarySet] = []
        self._misses = 0

    def resolve(self, placements: Sequence[DictionaryPlacement], new_stream_id: int) -> DictionarySet:
        """The set whose stream takes a bundle with these dictionaries; its `stream_id` is `new_stream_id` if it is a new one."""
        messages = [bytes(placement.message) for placement in placements]
        digest = b"".join(map(xxhash.xxh3_128_digest, messages))
        found = self._by_digest.get(digest)
        # The hash only finds the candidate: a producer may try to make two dictionaries collide.
        if found is None or found.messages(self._read) != messages:
            found = self._find_extended(messages) or DictionarySet(new_stream_id)
            self._by_digest.pop(found.digest, None)
            found.refer_to(placements, messages, digest)
            self._by_digest[digest] = found
        self._use(found)
        return found

    def _use(self, used: DictionarySet) -> None:
        """Move to the front of the streams used last."""
        if self._recent and self._recent[0] is used:
            return
        if used in self._recent:
            self._recent.remove(used)
        self._recent.insert(0, used)
        if len(self._recent) > RECENT_STREAMS:
            self._recent.pop().forget_bytes()

    def _find_extended(self, messages: list[bytes]) -> DictionarySet | None:
        if self._misses < MISSES_BEFORE_SAMPLING or self._misses % MISSES_BEFORE_SAMPLING == 0:
            found = self._compare_with_recent(messages)
            if found is not None:
                self._misses = 0
                return found
        self._misses += 1
        return None

    def _compare_with_recent(self, messages: list[bytes]) -> DictionarySet | None:
        arrays = self._decoder.arrays(messages) if self._recent else None
        if arrays is None:
            return None
        for candidate in self._recent:
            kept = candidate.arrays(self._read, self._decoder)
            if kept is not None and all(map(_extends, kept, arrays)):
                return candidate
        return None


class DictionaryDecoder:
    """Decodes the dictionaries of one schema by reading a stream of them and a batch of no rows, nested ones included."""

    def __init__(self, schema_message: bytes) -> None:
        self._schema_message = schema_message
        self._empty_batch: bytes | None = None

    def arrays(self, messages: list[bytes]) -> list[pa.Array] | None:
        """The dictionary arrays in the order of the schema's fields; None if the messages cannot be decoded."""
        try:
            stream = b"".join((self._schema_message, *messages, self._empty_batch_message(), END_OF_STREAM))
            batch = pa.ipc.open_stream(pa.py_buffer(stream)).read_next_batch()
            arrays = [found.dictionary for column in batch.columns for found in dictionary_arrays(column)]
            for array in arrays:
                # Comparing trusts offsets, so they are checked first: the bytes came from a producer.
                array.validate(full=True)
        except (pa.ArrowException, OSError, StopIteration):
            # StopIteration: one of the messages ends the stream.
            return None
        return arrays

    def _empty_batch_message(self) -> bytes:
        if self._empty_batch is None:
            schema = pa.ipc.read_schema(pa.py_buffer(self._schema_message))
            columns = [pa.nulls(0, field.type) for field in schema]
            self._empty_batch = pa.RecordBatch.from_arrays(columns, schema=schema).serialize().to_pybytes()
        return self._empty_batch


def dictionary_arrays(array: pa.Array) -> Iterator[pa.DictionaryArray]:
    """The dictionary-encoded arrays in an array, outer before inner, in the order of its fields."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield array
        children = [array.dictionary]
    elif isinstance(kind, pa.BaseExtensionType):
        children = [array.storage]
    elif pa.types.is_struct(kind) or pa.types.is_union(kind):
        children = [array.field(index) for index in range(kind.num_fields)]
    elif pa.types.is_nested(kind) or pa.types.is_run_end_encoded(kind):
        children = [array.values]
    else:
        return
    for child in children:
        yield from dictionary_arrays(child)


def _extends(kept: pa.Array, new: pa.Array) -> bool:
    """Whether every index into `kept` means the same value in `new`."""
    if len(new) < len(kept) or _holds_floats(kept.type):
        return False
    return bool(new.slice(0, len(kept)).equals(kept))


def _holds_floats(kind: pa.DataType) -> bool:
    """Floats that compare equal may differ in their bytes (0.0 and -0.0), and then one must not stand for the other."""
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_floats(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _holds_floats(kind.value_type)
    return bool(pa.types.is_floating(kind)) or any(
        _holds_floats(kind.field(index).type) for index in range(kind.num_fields)
    )
