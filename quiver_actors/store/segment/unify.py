"""Bringing streams together that differ only in their dictionaries, without decoding their batches.

One dictionary takes the values of several, in the order in which they first appear; of the batches only the index buffers change,
in place: same metadata, same sizes. Keys keep their type: where a union has more values than its keys can tell apart, a new stream
begins. Left alone are streams
- whose dictionaries are ordered (the order would mean nothing any more) or hold dictionaries themselves,
- whose values cannot be hashed (lists, structs, maps), or whose bodies are compressed.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quiver_actors.errors import ArrowError
from quiver_actors.store.segment.arrow_ipc import END_OF_STREAM, dictionary_ids, encode_dictionary
from quiver_actors.store.segment.bodies import has_compressed_body
from quiver_actors.store.segment.dictionaries import DictionaryDecoder, dictionary_arrays
from quiver_actors.store.segment.outline import READ_BYTES, Read, StreamOutline, read_messages

DICTIONARY_BYTES_MAX = 16 << 20
"""How many bytes of dictionaries are taken into memory for the streams of one schema; streams behind that are left alone."""

Mapping = npt.NDArray[np.int64]
"""New keys, indexed by the old ones."""

_WITHOUT_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


class Member(NamedTuple):
    """A stream that goes into another one. `mappings`: one per dictionary, None where its keys stay as they are."""

    stream: int
    mappings: tuple[Mapping | None, ...]


class Union(NamedTuple):
    """One stream made of several."""

    dictionaries: tuple[bytes, ...]
    """Whole messages, in the order of the schema's fields."""
    members: tuple[Member, ...]


class _Candidate(NamedTuple):
    stream: int
    arrays: list[pa.Array]


def unify(streams: Sequence[StreamOutline], group: Sequence[int], read: Read) -> list[Union]:
    """Find out which streams of a group can become one.

    Args:
        group: indexes of streams of one slot, fingerprint and schema, ascending.

    Returns:
        Unions of at least two streams; the streams that are in none stay as they are.
    """
    schema_message = streams[group[0]].schema.message
    ids = dictionary_ids(schema_message)
    if len(group) < 2 or not ids:
        return []
    try:
        types = list(_dictionary_types(pa.ipc.read_schema(pa.py_buffer(schema_message)).types))
    except (pa.ArrowException, OSError):
        return []
    if len(types) != len(ids) or any(kind.ordered or any(_dictionary_types([kind.value_type])) for kind in types):
        return []
    decoder = DictionaryDecoder(schema_message)
    candidates = list(_candidates(streams, group, read, decoder, len(ids)))
    unions: list[Union] = []
    while len(candidates) > 1:
        union, taken = _unite(candidates, types, ids)
        if union is not None:
            unions.append(union)
        candidates = candidates[taken:]
    return unions


def _dictionary_types(types: Iterable[pa.DataType]) -> Iterator[pa.DictionaryType]:
    """All dictionary types in these, outer before inner, in the order of the fields."""
    for kind in types:
        if pa.types.is_dictionary(kind):
            yield kind
            yield from _dictionary_types([kind.value_type])
        elif isinstance(kind, pa.BaseExtensionType):
            yield from _dictionary_types([kind.storage_type])
        else:
            yield from _dictionary_types(kind.field(index).type for index in range(kind.num_fields))


def _candidates(
    streams: Sequence[StreamOutline], group: Sequence[int], read: Read, decoder: DictionaryDecoder, count: int
) -> Iterator[_Candidate]:
    """The streams whose dictionaries can be decoded, and have room together."""
    room = DICTIONARY_BYTES_MAX
    for index in group:
        spans = streams[index].dictionaries
        room -= int(spans[:, 1:].sum())
        if room < 0:
            return
        if _is_compressed(streams[index], read):
            continue
        arrays = decoder.arrays([bytes(message) for message in read_messages(read, spans)])
        if arrays is not None and len(spans) == len(arrays) == count:
            yield _Candidate(index, [_hashable(array) for array in arrays])


def _is_compressed(stream: StreamOutline, read: Read) -> bool:
    """Judged by its first batch; a producer that changes its mind in the middle costs the compaction."""
    first = stream.batches[:1].tolist()
    return any(has_compressed_body(read(metadata_bytes, offset)) for offset, metadata_bytes, _ in first)


def _hashable(array: pa.Array) -> pa.Array:
    """The same values in a type whose values can be told apart by `dictionary_encode`."""
    kind = array.type
    if pa.types.is_floating(kind):
        # 0.0 and -0.0 are equal, and still two values.
        return array.view({16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[kind.bit_width])
    if kind in _WITHOUT_VIEWS:
        # Of views it encodes null as the empty string (pyarrow 26).
        return array.cast(_WITHOUT_VIEWS[kind])
    return array


def _unite(
    candidates: Sequence[_Candidate], types: Sequence[pa.DictionaryType], ids: Sequence[int]
) -> tuple[Union | None, int]:
    """Make one stream of as many as its keys can serve, from the first on. Returns also how many candidates that settles."""
    try:
        columns = [_Column([candidate.arrays[place] for candidate in candidates]) for place in range(len(types))]
    except pa.ArrowException:
        return None, len(candidates)  # values that cannot be hashed
    taken = min(column.serves(kind.index_type) for column, kind in zip(columns, types, strict=True))
    if taken < 2:
        return None, 1
    members = tuple(
        Member(candidate.stream, tuple(column.mapping(number) for column in columns))
        for number, candidate in enumerate(candidates[:taken])
    )
    messages = [
        encode_dictionary(dictionary_id, column.values_message(taken, kind.value_type))
        for dictionary_id, column, kind in zip(ids, columns, types, strict=True)
    ]
    return Union(tuple(messages), members), taken


class _Column:
    """One dictionary of a schema in all candidates, and the union of their values."""

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        encoded = pa.concat_arrays(arrays).dictionary_encode("encode")
        self._values: pa.Array = encoded.dictionary
        self._keys: Mapping = encoded.indices.to_numpy().astype(np.int64)
        self._ends = [0, *np.cumsum([len(array) for array in arrays]).tolist()]

    def _value_count(self, streams: int) -> int:
        """How many values the first so many streams have together: values are numbered as they appear."""
        return int(self._keys[: self._ends[streams]].max(initial=-1)) + 1

    def serves(self, index_type: pa.DataType) -> int:
        """How many streams, from the first on, keys of that type can serve."""
        capacity = int(np.iinfo(index_type.to_pandas_dtype()).max) + 1
        return bisect.bisect_right(range(1, len(self._ends)), capacity, key=self._value_count)

    def mapping(self, stream: int) -> Mapping | None:
        keys = self._keys[self._ends[stream] : self._ends[stream + 1]]
        return None if np.array_equal(keys, np.arange(len(keys))) else keys

    def values_message(self, streams: int, value_type: pa.DataType) -> bytes:
        """The values of the first so many streams as a record batch message."""
        values = self._values.slice(0, self._value_count(streams))
        if value_type in _WITHOUT_VIEWS:
            values = values.cast(value_type)
        elif values.type != value_type:
            values = values.view(value_type)
        message: bytes = pa.RecordBatch.from_arrays([values], names=[""]).serialize().to_pybytes()
        return message


# --- the batches of a member ---------------------------------------------------------------------------------------------


def remapped_messages(stream: StreamOutline, mappings: Sequence[Mapping | None], read: Read) -> Iterator[memoryview]:
    """The batch messages of a stream with the new keys in their index buffers, nothing else changed.

    Raises:
        ArrowError: a batch cannot be decoded, or its keys do not stand in its message as they are (compressed bodies).
    """
    dictionaries = (bytes(message) for message in read_messages(read, stream.dictionaries))
    head = b"".join((stream.schema.message, *dictionaries))
    for messages in _in_groups(read_messages(read, stream.batches)):
        try:
            yield from _remap_group(head, messages, mappings)
        except (pa.ArrowException, OSError) as error:
            raise ArrowError(f"a batch of slot {stream.schema.slot_id} cannot be decoded: {error}") from error


def _in_groups(messages: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Lists of messages, each of about `READ_BYTES`: opening a stream costs more than decoding a small batch."""
    group: list[memoryview] = []
    size_bytes = 0
    for message in messages:
        group.append(message)
        size_bytes += message.nbytes
        if size_bytes >= READ_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _remap_group(
    head: bytes, messages: Sequence[memoryview], mappings: Sequence[Mapping | None]
) -> Iterator[memoryview]:
    joined = bytearray().join((head, *messages, END_OF_STREAM))
    buffer, changed = pa.py_buffer(joined), memoryview(joined)
    reader = pa.ipc.open_stream(buffer)
    start = len(head)
    for message in messages:
        batch = next(reader, None)
        if batch is None:
            raise ArrowError("a stream ends where a batch is expected")
        end = start + len(message)
        _remap(changed[start:end], buffer.address + start, batch, mappings)
        yield changed[start:end]
        start = end


def _remap(message: memoryview, address: int, batch: pa.RecordBatch, mappings: Sequence[Mapping | None]) -> None:
    """Write other keys into a message that stands at `address`, and into whose bytes its decoded batch points."""
    arrays = (array for column in batch.columns for array in dictionary_arrays(column))
    for array, mapping in zip(arrays, mappings, strict=True):
        indices = array.indices
        buffer = indices.buffers()[1]
        if mapping is None or not len(mapping) or not len(indices) or buffer is None:
            continue
        kind = np.dtype(indices.type.to_pandas_dtype())
        start = buffer.address - address + indices.offset * kind.itemsize
        if not 0 <= start <= len(message) - len(indices) * kind.itemsize:
            raise ArrowError("the keys of a dictionary column are not in the batch's message: its body is compressed")
        keys = np.frombuffer(message, kind, count=len(indices), offset=start)
        # Under a null stands any number: it is clipped, so that no key points behind the mapping.
        keys[:] = mapping.take(keys.astype(np.int64), mode="clip")
