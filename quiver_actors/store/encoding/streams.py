"""Schemas and the bytes that stand for them: encoded once, then found again for each batch in well under a microsecond.

A stream is one (topic, slot, schema) of this client. Its handle is what a Push message says instead; each connection is told once
what the handle means (`DeclareSchema`).
"""

from __future__ import annotations

import hashlib
import itertools

import pyarrow as pa

from quiver_actors.base.protocol.messages import SCHEMA_MESSAGE_BYTES_MAX
from quiver_actors.base.units import format_size
from quiver_actors.errors import InvalidBundle

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
WRITE_OPTIONS = pa.ipc.IpcWriteOptions(use_threads=False)

_RECENT_MAX = 8
_KNOWN_MAX = 1024

_handles = itertools.count(1)


class EncodedStream:
    """One (topic, slot, schema). Immutable, compared by identity."""

    __slots__ = (
        "fingerprint",
        "frame_bytes",
        "handle",
        "has_dictionaries",
        "is_told_by_equality",
        "message",
        "schema",
        "slot_id",
        "topic",
    )

    def __init__(self, topic: str, slot_id: int, schema: pa.Schema, message: bytes) -> None:
        self.topic = topic
        self.slot_id = slot_id
        self.schema = schema
        self.message = message
        """The encapsulated schema message, as it stands at the start of each payload."""
        self.frame_bytes = len(message) + len(END_OF_STREAM)
        """Bytes of a payload beside its content and its padding: schema message and end of stream."""
        self.fingerprint = hashlib.blake2b(message, digest_size=32).digest()
        """The schema's fingerprint: BLAKE2b of the encoded schema message, 32 bytes."""
        self.handle = next(_handles)
        """The stream's number in Push messages; no other stream of this process ever has it."""
        self.has_dictionaries = any(_holds_dictionary(field.type) for field in schema)
        self.is_told_by_equality = all(_is_told_by_equality(field.type) for field in schema)
        """Whether every schema that equals this one has the same message."""


class StreamTable:
    """The streams of one topic. May be used by several threads at once: at worst one schema gets two handles."""

    __slots__ = ("_known", "_recent", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._recent: dict[int, tuple[EncodedStream, ...]] = {}
        self._known: dict[tuple[int, bytes], EncodedStream] = {}

    def stream(self, slot_id: int, schema: pa.Schema) -> EncodedStream:
        """The stream of a slot whose schema equals `schema` in names, types and their parameters, order, nullability and metadata.

        Raises:
            InvalidBundle: Arrow cannot encode the schema, or not read what it encodes, or it is too long.
        """
        recent = self._recent.get(slot_id, ())
        for position, candidate in enumerate(recent):
            if schema is candidate.schema or schema.equals(candidate.schema, check_metadata=True):
                if position:
                    self._recent[slot_id] = (candidate, *recent[:position], *recent[position + 1 :])
                return candidate
        found = self._by_message(slot_id, schema)
        if found.is_told_by_equality:
            self._recent[slot_id] = (found, *recent[: _RECENT_MAX - 1])
        return found

    def _by_message(self, slot_id: int, schema: pa.Schema) -> EncodedStream:
        message = _schema_message(schema)
        found = self._known.get((slot_id, message))
        if found is None:
            if len(message) > SCHEMA_MESSAGE_BYTES_MAX:
                # Refused here, before a connection counts on a handle that it is never told of.
                raise InvalidBundle(
                    f"slot {slot_id}: the encoded schema has {len(message)} bytes ({format_size(len(message))}), its limit is "
                    f"{SCHEMA_MESSAGE_BYTES_MAX}: what its metadata holds belongs in a column"
                )
            _check_comes_back(slot_id, schema, message)
            found = EncodedStream(self.topic, slot_id, schema, message)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[slot_id, message] = found
        return found


def _schema_message(schema: pa.Schema) -> bytes:
    """The schema message that a stream writer puts before everything else."""
    sink = pa.BufferOutputStream()
    try:
        pa.ipc.new_stream(sink, schema, options=WRITE_OPTIONS).close()
    except pa.ArrowException as error:
        raise InvalidBundle(f"Arrow cannot encode the schema: {error}") from error
    stream: bytes = sink.getvalue().to_pybytes()
    return stream[: -len(END_OF_STREAM)]


def _check_comes_back(slot_id: int, schema: pa.Schema, message: bytes) -> None:
    """Refuse what Arrow writes and cannot read again (pyarrow 26): nobody would get it."""
    for field in schema:
        if _holds_twofold_dictionary(field.type):
            raise InvalidBundle(
                f"slot {slot_id}: column {field.name!r} is {field.type}, a dictionary of dictionaries, which Arrow writes and cannot read: "
                "push its values plain, as dictionary_decode() gives them"
            )
    try:
        pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise InvalidBundle(
            f"slot {slot_id}: Arrow writes the schema and cannot read it ({error}): push the storage of extension types that are in "
            f"dictionaries; the columns are {', '.join(f'{field.name} {field.type}' for field in schema)}"[:2000]
        ) from error


def _holds_twofold_dictionary(data_type: pa.DataType) -> bool:
    if isinstance(data_type, pa.BaseExtensionType):
        return _holds_twofold_dictionary(data_type.storage_type)
    if isinstance(data_type, pa.DictionaryType):
        values = data_type.value_type
        return isinstance(values, pa.DictionaryType) or _holds_twofold_dictionary(values)
    return any(_holds_twofold_dictionary(data_type.field(index).type) for index in range(data_type.num_fields))


def _holds_dictionary(data_type: pa.DataType) -> bool:
    """Whether a dictionary is in the type or anywhere inside it."""
    if isinstance(data_type, pa.DictionaryType):
        return True
    if isinstance(data_type, pa.BaseExtensionType):
        return _holds_dictionary(data_type.storage_type)
    return any(_holds_dictionary(data_type.field(index).type) for index in range(data_type.num_fields))


def _is_told_by_equality(data_type: pa.DataType) -> bool:
    """Whether types that equal this one are encoded as it is. Extension types in Python equal each other as their class says, by default
    whatever their parameters are; and what is inside a dictionary or an extension type is compared without the metadata of fields."""
    if isinstance(data_type, pa.ExtensionType):
        return False
    if isinstance(data_type, pa.BaseExtensionType):
        inner = data_type.storage_type
    elif isinstance(data_type, pa.DictionaryType):
        inner = data_type.value_type
    else:
        return all(_is_told_by_equality(data_type.field(index).type) for index in range(data_type.num_fields))
    return not inner.num_fields and _is_told_by_equality(inner)
