"""Frames on a byte stream and the messages in them, without any I/O.

A frame is a little-endian u32 length and that many bytes of msgpack. Both sides use this module: the reader takes bytes however they
arrive (`recv_into` or `recvmsg_into` its buffer, or `feed`) and gives back every complete frame of a read at once; that,
with one send for all answers, is what makes the control loop fast.

Guarantees: a frame is given out once and whole; no frame longer than the limit is ever buffered; the buffer of a long frame is
given back to the allocator once that frame has been read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from quiver_actors.base.protocol.lone import (
    KIND_ACK,
    KIND_PUSH,
    LONE_ACK,
    LONE_ACK_LENGTH,
    LONE_MARK,
    LONE_PUSH,
    LONE_PUSH_LENGTH,
    LoneAck,
    LoneFields,
    LonePush,
    decode_lone_ack,
    decode_lone_push,
)
from quiver_actors.base.protocol.messages import FRAME_BYTES_MAX, Acked, AckRun, ClientMessage, Message, WorkerMessage
from quiver_actors.errors import ProtocolError, UsageError

LENGTH = struct.Struct("<I")
_LENGTH_BYTES = LENGTH.size
BUFFER_BYTES = 64 << 10
"""Usual size of a reader's buffer: many control messages a read, one allocation a connection."""

_READ_BYTES_MIN = 4 << 10
"""Below this much room the rest of a frame is moved to the front rather than read in small pieces."""

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""Errors that msgspec raises for bytes that are no message; text that is not UTF-8 is an error of its own."""

_ACK_START = (LONE_ACK_LENGTH, LONE_MARK, KIND_ACK)
_LONE_START = (LONE_PUSH_LENGTH, LONE_MARK, KIND_PUSH)

_UNSENDABLE = (TypeError, ValueError, OverflowError)
"""Errors that msgspec raises for values that no message can carry, or not in this field."""

_encoder = msgspec.msgpack.Encoder()
# The decoders are built from unions: their element type is beyond what msgspec's stubs can infer.
_client_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(cast(Any, ClientMessage))
_worker_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(cast(Any, WorkerMessage))


def encode_frame(message: Message) -> bytes:
    """Encode a message as one frame.

    Raises:
        ProtocolError: the frame would be over the limit; split the message.
    """
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise _too_long(len(body))
    return LENGTH.pack(len(body)) + body


def check_request(request: Message) -> None:
    """Check that a worker could read a request. Inside of one process nothing else does.

    Raises:
        UsageError: a field has a value of a type that it cannot have; names the field.
    """
    try:
        _client_decoder.decode(_encoder.encode(request))
    except _UNSENDABLE:
        for field in msgspec.structs.fields(type(request)):
            _check_field(field, getattr(request, field.name))
        raise


def _check_field(field: msgspec.structs.FieldInfo, value: object) -> None:
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=field.type)
    except _UNSENDABLE as error:
        raise UsageError(f"{field.name}={repr(value)[:100]} is not possible: {error}") from error


def decode_client_message(frame: memoryview | bytes) -> ClientMessage | LonePush:
    """Decode what a client sent. The message owns its bytes: the frame may go.

    Raises:
        ProtocolError: no such message, or a field of the wrong type.
    """
    if len(frame) and frame[0] == LONE_MARK:
        return decode_lone_push(frame)
    try:
        message: ClientMessage = _client_decoder.decode(frame)
        return message
    except _UNDECODABLE as error:
        raise ProtocolError(f"the client sent a frame of {len(frame)} bytes that is not a message: {error}") from error


def decode_worker_message(frame: memoryview | bytes) -> WorkerMessage:
    """Decode what a worker sent. The message owns its bytes: the frame may go.

    Raises:
        ProtocolError: no such message, or a field of the wrong type.
    """
    if len(frame) and frame[0] == LONE_MARK:
        durability, bundle_index, tag, segment_seq, sequence = decode_lone_ack(frame)
        return Acked(durability, [AckRun(tag, segment_seq, bundle_index, sequence, 1)])
    try:
        message: WorkerMessage = _worker_decoder.decode(frame)
        return message
    except _UNDECODABLE as error:
        raise ProtocolError(f"the worker sent a frame of {len(frame)} bytes that is not a message: {error}") from error


class FrameReader:
    """Collects received bytes and gives out complete frames. Owned by one thread.

    size = connection.recv_into(reader.writable())
    reader.advance(size)
    for frame in reader.frames():
        handle(decode_worker_message(frame))
    """

    __slots__ = ("_end", "_start", "_view", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        """Longest frame accepted; a server keeps it small until the peer has introduced itself."""
        self._replace(BUFFER_BYTES)
        self._start = 0
        """Offset of the first received byte that was not returned yet."""
        self._end = 0
        """Offset behind the last received byte."""

    @property
    def capacity_bytes(self) -> int:
        """Bytes of memory that the buffer takes."""
        return len(self._view)

    def writable(self) -> memoryview:
        """Room for the next read, never empty. Frames given out before become invalid.

        Raises:
            ProtocolError: the frame that is arriving is over the limit.
        """
        if self._end == self._start and self._end + _READ_BYTES_MIN <= len(self._view) == BUFFER_BYTES:
            self._start = self._end = 0
            return self._view
        self._make_room(_READ_BYTES_MIN)
        return self._view[self._end :]

    def advance(self, size_bytes: int) -> None:
        """Count `size_bytes` that were received into the start of `writable()`."""
        if not 0 <= size_bytes <= len(self._view) - self._end:
            raise ValueError(
                f"{size_bytes} bytes do not fit the {len(self._view) - self._end} bytes that were writable"
            )
        self._end += size_bytes

    def take_lone(self, size_bytes: int) -> LoneFields | None:
        """Count like `advance`; the fields of a lone push, which is then taken, if that is all that there is."""
        if size_bytes == LONE_PUSH.size and not self._end:
            fields: LoneFields = LONE_PUSH.unpack_from(self._view)
            if fields[:3] == _LONE_START:
                return fields
        self.advance(size_bytes)
        return None

    def take_ack(self, size_bytes: int) -> LoneAck | None:
        """Count like `advance`; the acknowledgement of a lone push, which is then taken, if that is all that there is."""
        if size_bytes == LONE_ACK.size and not self._end:
            fields: LoneAck = LONE_ACK.unpack_from(self._view)
            if fields[:3] == _ACK_START:
                return fields
        self.advance(size_bytes)
        return None

    def feed(self, received: bytes | bytearray | memoryview) -> None:
        """Take bytes that were received elsewhere. Frames given out before become invalid.

        Raises:
            ProtocolError: the frame that is arriving is over the limit.
        """
        source = memoryview(received)
        self._make_room(len(source))
        self._view[self._end : self._end + len(source)] = source
        self._end += len(source)

    def frames(self) -> Iterator[memoryview]:
        """Yield every complete frame, without its length field, oldest first.

        A frame borrows the buffer: it is valid until the next `writable()` or `feed()`.

        Raises:
            ProtocolError: a frame's length is over the limit; nothing behind it can be understood.
        """
        view = self._view
        while self._end - self._start >= _LENGTH_BYTES:
            body = self._start + _LENGTH_BYTES
            end = body + self._frame_length()
            if end > self._end:
                return
            self._start = end
            yield view[body:end]

    def _frame_length(self) -> int:
        length: int = LENGTH.unpack_from(self._view, self._start)[0]
        if length > self.frame_bytes_max:
            raise _too_long(length, self.frame_bytes_max)
        return length

    def _make_room(self, size_bytes: int) -> None:
        """Make room for `size_bytes` more, and for the rest of the frame that is arriving."""
        pending = self._end - self._start
        needed = pending + size_bytes
        if pending >= LENGTH.size:
            needed = max(needed, LENGTH.size + self._frame_length())
        elif pending == 0:
            self._start = self._end = 0
        capacity = len(self._view)
        wanted = max(needed, BUFFER_BYTES)
        if self._start + needed <= capacity and (capacity == BUFFER_BYTES or needed > BUFFER_BYTES):
            return
        # Through a copy: the two ranges may overlap.
        rest = bytes(self._view[self._start : self._end])
        if capacity != wanted:
            self._replace(wanted)
        self._view[:pending] = rest
        self._start, self._end = 0, pending

    def _replace(self, size_bytes: int) -> None:
        # Never resized in place: frames that were given out may still export the old one.
        self._view = memoryview(bytearray(size_bytes))


def _too_long(size_bytes: int, limit: int = FRAME_BYTES_MAX) -> ProtocolError:
    return ProtocolError(
        f"a frame of {size_bytes} bytes is over the limit of {limit} bytes: the peer is broken or hostile"
    )
