"""The way of a client to the archiver of its node, by which it reads what is no longer on the disk.

Waits for its answers; any thread may ask, one at a time. It connects when it is first used, and again after a loss or a fork. What the
archiver sends is believed of the archive's contents alone: each block is proven against its checksum before it is shown.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from quiver_actors.base.locks import new_lock
from quiver_actors.base.protocol.archive_messages import (
    BLOCKS_MAX,
    ArchiveAnswer,
    ArchivedHole,
    ArchivedList,
    ArchivedOpened,
    ArchiveRequest,
    FetchArchived,
    ListArchived,
    ListRetired,
    OpenArchived,
    RetiredCore,
    RetiredList,
    decode_archive_answer,
)
from quiver_actors.base.protocol.framing import FrameReader, encode_frame
from quiver_actors.base.protocol.messages import Done, Refused, SegmentColumns, SegmentInfo
from quiver_actors.client.calls import refusal_error
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.errors import ProtocolError, UsageError, WorkerUnavailable
from quiver_actors.store.segment.mapping import SegmentMapping

TIMEOUT_SECONDS = 120.0
"""How long an answer may take: the archiver may have to fetch from an object store that is slow."""
RESTART_SECONDS = 30.0
"""How long an archiver is waited for that has died."""
_AWAY = (ConnectionRefusedError, FileNotFoundError)
_LOOK_SECONDS = 0.05
_DESCRIPTORS_MAX = 4


class _Answered(NamedTuple):
    answer: ArchiveAnswer
    descriptor: int | None
    generation: int


class ArchiveDoor:
    """The connection of one client to the archiver of its node, made when it is first needed and anew when it was lost.

    Args:
        directory: says where the archiver is.
        timeout_seconds: of each request.
    """

    def __init__(self, directory: WorkerDirectory, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._directory = directory
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._generation = 0
        """Rises with each connection: numbers of files are those of one connection."""

    def another(self) -> ArchiveDoor:
        """A door of its own to the same archiver: who asks there does not wait for who asks here."""
        return ArchiveDoor(self._directory, self._timeout_seconds)

    @property
    def is_there(self) -> bool:
        """Whether the node has an archiver, though it may be away just now. Does not wait."""
        try:
            connected = self._directory.another().connect_to_archiver()
        except OSError:
            return True
        if connected is not None:
            connected.close()
        return connected is not None

    def listed(
        self, topic: str, core: int, incarnation: str, first_segment_seq: int, *, with_columns: bool = False
    ) -> ArchivedList | None:
        """Ask for what is archived of a topic on a core, from a segment on. Returns None where the node has no archiver.

        Args:
            with_columns: whether the columns of the segments are wanted, too.

        Raises:
            NotAllowed, UnknownTopic, StorageUnavailable, WorkerUnavailable: it cannot be told.
        """
        segments: list[SegmentInfo] = []
        holes: list[ArchivedHole] = []
        schemas: list[tuple[int, bytes]] = []
        columns: list[SegmentColumns] = []
        while True:
            try:
                request = ListArchived(topic, core, incarnation, first_segment_seq, with_columns)
                answer = self._ask(request).answer
            except _NoArchiver:
                return None
            if not isinstance(answer, ArchivedList):
                raise _unexpected(answer)
            segments += answer.segments
            holes += answer.holes
            for each in answer.columns:
                streams = [(number + len(schemas), rows) for number, rows in each.streams]
                columns.append(SegmentColumns(each.segment_seq, streams, each.statistics))
            schemas += answer.schemas
            if not answer.is_cut:
                return ArchivedList(segments, holes, answer.archived_through, False, tuple(schemas), tuple(columns))
            first_segment_seq = answer.archived_through + 1

    def retired(self, topic: str) -> list[RetiredCore]:
        """Ask which cores of a topic the node has or has had, by rising number. Nobody is asked if the node has never had others than now.

        Raises:
            NotRunning: there is no node.
            And as `listed`.
        """
        if not self._directory.another().retired_cores:
            return []
        try:
            answer = self._ask(ListRetired(topic)).answer
        except _NoArchiver:
            return []
        if not isinstance(answer, RetiredList):
            raise _unexpected(answer)
        return answer.cores

    def opened(self, request: OpenArchived) -> DoorFile:
        """The file of one copy of an archived segment.

        Raises:
            NotStored: there is no such copy.
            FormatError: its checksums are damaged.
            And as `listed`.
        """
        return DoorFile(self, request)

    def ask_open(self, request: OpenArchived) -> tuple[ArchivedOpened, int, int]:
        """The answer, the descriptor of the file, for the caller to close, and the connection's generation. Raises as `opened`."""
        try:
            found = self._ask(request)
        except _NoArchiver as error:
            raise WorkerUnavailable("the archiver of the node is gone") from error
        if not isinstance(found.answer, ArchivedOpened) or found.descriptor is None:
            raise _unexpected(found.answer)
        return found.answer, found.descriptor, found.generation

    def ask_fetch(self, topic: str, file: int, generation: int, blocks: Sequence[int]) -> bool:
        """Have blocks fetched into a file; False if the file was opened on another connection, or is not open any more."""
        for first in range(0, len(blocks), BLOCKS_MAX):
            try:
                found = self._ask(FetchArchived(topic, file, list(blocks[first : first + BLOCKS_MAX])))
            except (UsageError, _NoArchiver):
                return False
            if found.generation != generation:
                return False
            if not isinstance(found.answer, Done):
                raise _unexpected(found.answer)
        return True

    def close(self) -> None:
        """Close the connection, unless a thread is asking just now: then it goes with the door. Does not wait; idempotent."""
        if self._lock.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._lock.release()

    def _ask(self, request: ArchiveRequest) -> _Answered:
        with self._lock:
            deadline = time.monotonic() + RESTART_SECONDS
            while True:
                connected = self._connected(deadline)
                try:
                    answer, descriptor = _exchange(connected, request)
                    break
                except (OSError, ProtocolError) as error:
                    self._disconnect()
                    # A lost connection is made again: the archiver may be one that is being restarted.
                    if not isinstance(error, ConnectionError) or time.monotonic() > deadline:
                        raise _unavailable(error) from error
                    time.sleep(_LOOK_SECONDS)
                except BaseException:
                    # Interrupted: the answer that is under way must not be taken for that of the next request.
                    self._disconnect()
                    raise
            answered = _Answered(answer, descriptor, self._generation)
        if isinstance(answer, Refused):
            raise refusal_error(answer)
        return answered

    def _connected(self, deadline: float) -> socket.socket:
        if self._pid != os.getpid():
            # A child has its parent's socket, and must say nothing on it.
            self._disconnect()
        if self._socket is None:
            connected = self._connect(deadline)
            connected.settimeout(self._timeout_seconds)
            self._socket, self._pid = connected, os.getpid()
            self._generation += 1
        return self._socket

    def _connect(self, deadline: float) -> socket.socket:
        """Connect; an archiver that has just died is waited for, as its node starts another one."""
        # Another one than that of the client's exchange, which threads may be using.
        directory = self._directory.another()
        while True:
            try:
                connected = directory.connect_to_archiver()
            except OSError as error:
                if not isinstance(error, _AWAY) or time.monotonic() > deadline:
                    raise _unavailable(error) from error
                time.sleep(_LOOK_SECONDS)
            else:
                if connected is None:
                    raise _NoArchiver
                return connected

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class DoorFile:
    """An archived segment in a file of the archiver; a `BlockSource` of `store.segment.proven_blocks`. It ends with its connection."""

    def __init__(self, door: ArchiveDoor, request: OpenArchived) -> None:
        self._door = door
        self._request = request
        self._lock = new_lock()
        opened, descriptor, self._generation = door.ask_open(request)
        self._file = opened.file
        self._opened = opened
        self._mapping = _mapped(opened, descriptor, request.segment_seq)
        self._checksums = array("I", opened.checksums)

    @property
    def memory(self) -> memoryview:
        """The mapped file; zeros where nothing was fetched."""
        return self._mapping.memory[: self._opened.size_bytes]

    @property
    def block_bytes(self) -> int:
        """The size of each block but the last one."""
        return self._opened.block_bytes

    @property
    def checksums(self) -> Sequence[int]:
        """CRC-32 of each block."""
        return self._checksums

    def fetch(self, blocks: Sequence[int]) -> None:
        """Have the archiver fetch blocks.

        Raises:
            ChecksumMismatch: a block is damaged in the object store.
            NotAllowed, StorageUnavailable, WorkerUnavailable: it cannot be had.
        """
        with self._lock:
            if not self._door.ask_fetch(self._request.topic, self._file, self._generation, blocks):
                raise WorkerUnavailable("the archiver of the node was restarted: read again")


class _NoArchiver(Exception):
    """The node has no archiver."""


def _exchange(connected: socket.socket, request: ArchiveRequest) -> tuple[ArchiveAnswer, int | None]:
    """Send a request and wait for its answer.

    Raises:
        OSError: the connection is lost, or the time is over.
        ProtocolError: what came is no answer.
    """
    connected.sendall(encode_frame(request))
    reader = FrameReader()
    descriptors: list[int] = []
    try:
        while True:
            data, received, _, _ = socket.recv_fds(connected, 1 << 20, _DESCRIPTORS_MAX)
            descriptors += received
            if not data:
                raise ConnectionResetError("the archiver closed the connection")
            reader.feed(data)
            for frame in reader.frames():
                answer = decode_archive_answer(frame)
                is_wanted = isinstance(answer, ArchivedOpened) and descriptors
                return answer, descriptors.pop(0) if is_wanted else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _mapped(opened: ArchivedOpened, descriptor: int, segment_seq: int) -> SegmentMapping:
    try:
        return SegmentMapping(descriptor, max(1, opened.size_bytes), segment_seq)
    finally:
        os.close(descriptor)


def _unavailable(error: Exception) -> WorkerUnavailable:
    return WorkerUnavailable(f"the archiver of the node cannot be asked: {error}")


def _unexpected(answer: ArchiveAnswer) -> ProtocolError:
    return ProtocolError(f"the archiver sent {type(answer).__name__}, which answers another request")
