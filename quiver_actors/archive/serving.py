"""The archiver's socket: users of the node read archived segments through it, without credentials of the object store.

One thread a connection. Each request is looked up in the table of rights, with the user that the kernel names, before anything is done.
What a client gets is a read-only descriptor of a file into which the archiver puts the blocks that the client asks for.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import logging
import os
import select
import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.reading.cached_file import CachedFile
from quiver_actors.archive.reading.columns import columns_in
from quiver_actors.archive.reading.contents import NodeContents, StreamContents
from quiver_actors.archive.reading.pieces import Numbered, numbered_in
from quiver_actors.archive.reading.segment_files import SegmentFiles
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
    decode_archive_request,
)
from quiver_actors.base.protocol.framing import FrameReader, encode_frame
from quiver_actors.base.protocol.messages import Done, Refused
from quiver_actors.base.rights import User, require
from quiver_actors.base.topics import Catalogue
from quiver_actors.errors import (
    FormatError,
    NotStored,
    ProtocolError,
    QuiverError,
    StorageUnavailable,
    UnknownTopic,
    UsageError,
)
from quiver_actors.node.worker.listener import Listener
from quiver_actors.node.worker.peer import peer_of
from quiver_actors.store.objects.object_store import ObjectStore

logger = logging.getLogger("quiver.archive")

REQUEST_BYTES_MAX = 1 << 20
LISTED_MAX = 20_000
"""Segments that one answer lists."""
COLUMNS_BYTES_MAX = 4 << 20
"""Bytes of statistics that one answer has, but for those of its first segment."""
FILES_MAX = 64
"""Files that one connection has open; the one that was used longest ago goes."""
CONNECTIONS_MAX = 256
GUEST_CONNECTIONS_MAX = 64
"""Connections of one guest: each task of Spark has a process of its own, and that has a connection."""
IDLE_SECONDS = 300.0
"""A connection that asks for nothing for so long is closed; a client makes a new one."""
LOOK_MS = 200
"""How often the thread that lets clients in looks whether it is to end."""


class ArchiveReads:
    """Carries requests out. Any thread may ask."""

    def __init__(
        self,
        store: ObjectStore,
        node: str,
        catalogue: Callable[[], Catalogue | None],
        files: SegmentFiles,
        cores: Callable[[str], list[RetiredCore]] | None = None,
    ) -> None:
        """
        Args:
            catalogue: says which topics the node has, and whose they are.
            cores: says which cores a topic has or has had here; None: nobody knows.
        """
        self._cores = cores
        self._store = store
        self._node = node
        self._catalogue = catalogue
        self._files = files
        self._contents: NodeContents | None = None
        """The manifest as it was read last; None: it was not."""
        self._numbered: dict[StreamKey, tuple[StreamContents, dict[int, Numbered]]] = {}
        """The segments of each stream that somebody has opened, and what they were made of."""

    def check(self, user: User, request: ArchiveRequest) -> None:
        """
        Raises:
            NotAllowed: the user may not read the topic.
            UnknownTopic: the node has none of that name.
            StorageUnavailable: a guest asks for what a former topic of that name has left, or a directory of this one cannot be read.
        """
        catalogue = self._catalogue()
        topic = None if catalogue is None else catalogue.topics.get(request.topic)
        if topic is None:
            raise UnknownTopic(f"topic {request.topic!r} does not exist on this node")
        name = f"archive.{type(request).__name__}"
        require(user, user.caller(topic.settings), name, f"topic {request.topic!r}")
        if isinstance(request, ListArchived | OpenArchived) and not user.is_operator:
            self._check_present(request)

    def cores(self, topic: str) -> list[RetiredCore]:
        """The cores that a topic has or has had here. Raises StorageUnavailable."""
        return [] if self._cores is None else self._cores(topic)

    def _check_present(self, request: ListArchived | OpenArchived) -> None:
        # Whose a former topic of that name was, nobody knows any more.
        if self._cores is not None and request.incarnation not in {
            each.incarnation for each in self.cores(request.topic)
        }:
            raise StorageUnavailable(
                f"topic {request.topic!r} has no directory of incarnation {request.incarnation!r} here: of a former topic of that name "
                "only the node's own user reads what is archived"
            )

    def listed(self, request: ListArchived) -> ArchivedList:
        """Return the segments and holes of a stream that are archived by now. Raises QuiverError: the store cannot be read."""
        contents = self._contents_of(_stream_of(request), is_anew=True)
        first = request.first_segment_seq
        known = [each for each in numbered_in(contents, first).values() if each.segment_seq >= first]
        page = _page_length(known, with_columns=request.with_columns)
        known, left = known[:page], known[page:]
        through = left[0].segment_seq - 1 if left else contents.archived_through
        holes = [
            ArchivedHole(hole.segment_seq, hole.first_bundle, hole.bundle_count, hole.reason)
            for each in known
            for hole in each.holes
        ]
        described = [each.segment for each in known if each.segment is not None] if request.with_columns else []
        columns = columns_in(contents, described)
        return ArchivedList(
            [each.info for each in known], holes, through, bool(left), tuple(columns.schemas), tuple(columns.segments)
        )

    def opened(self, request: OpenArchived) -> CachedFile:
        """The file of one copy of a segment.

        Raises:
            NotStored: nothing of it is archived, or there is no copy of that number.
            StorageUnavailable: this archive does not know it, and has not let it expire.
            And as `SegmentFiles.file`.
        """
        stream = _stream_of(request)
        # Where another copy is damaged or missing, it may have left the archive by its age since the manifest was read.
        contents = self._contents_of(stream, is_anew=bool(request.copy))
        found = self._numbered_in(contents).get(request.segment_seq)
        if found is None and not request.copy:
            # It may have been archived since: to look for its copies would list all objects of the stream.
            contents = self._contents_of(stream, is_anew=True)
            found = self._numbered_in(contents).get(request.segment_seq)
        if found is None and request.copy and request.segment_seq > contents.expired_through:
            raise StorageUnavailable(
                f"segment {request.segment_seq} of topic {request.topic!r} is not known to the archive of node {self._node} at "
                f"{self._store.url}: are archive.url and the node's name what they were?"
            )
        if found is None or found.segment is None:
            raise NotStored(f"segment {request.segment_seq} of topic {request.topic!r} is not in the archive")
        return self._files.file(stream, found, request.copy)

    def _numbered_in(self, contents: StreamContents) -> dict[int, Numbered]:
        known = self._numbered.get(contents.key)
        if known is None or known[0] is not contents:
            live = {stream.key for stream in self._manifest().streams}
            self._numbered = {key: each for key, each in self._numbered.items() if key in live}
            known = self._numbered[contents.key] = contents, numbered_in(contents)
        return known[1]

    def _contents_of(self, stream: StreamKey, *, is_anew: bool = False) -> StreamContents:
        """What the manifest says of a stream, as it was read last, or as it is now.

        Raises:
            StorageUnavailable: the head is not there yet, or it or a part of the manifest is gone or damaged. No bundle is lost for that:
                whoever waits for one gets it when the manifest is whole again.
            ArchiveError: the store cannot be read.
        """
        try:
            return self._manifest(is_anew=is_anew).contents(stream)
        except (UsageError, FormatError) as error:
            raise StorageUnavailable(str(error)) from error

    def _manifest(self, *, is_anew: bool = False) -> NodeContents:
        """The manifest as it was read last, or as it is now. Raises as `NodeContents`."""
        if self._contents is None:
            self._contents = NodeContents(self._store, self._node)
        elif is_anew:
            self._contents.refresh()
        return self._contents


def _page_length(known: Sequence[Numbered], *, with_columns: bool) -> int:
    """How many of the segments one answer lists."""
    if not with_columns:
        return LISTED_MAX
    size_bytes = 0
    for number, each in enumerate(known):
        size_bytes += 0 if each.segment is None else len(each.segment.statistics or b"")
        if number and size_bytes > COLUMNS_BYTES_MAX:
            return min(number, LISTED_MAX)
    return LISTED_MAX


class _OpenFile(NamedTuple):
    topic: str
    file: CachedFile


class ArchiveConnection:
    """One connected client. Owned by its thread."""

    def __init__(self, connected: socket.socket, user: User, reads: ArchiveReads) -> None:
        self._socket = connected
        self._user = user
        self._reads = reads
        self._files: OrderedDict[int, _OpenFile] = OrderedDict()
        self._numbers = itertools.count(1)

    def serve(self) -> None:
        """Answer requests until the client goes, is silent for long, or breaks the protocol."""
        reader = FrameReader(REQUEST_BYTES_MAX)
        self._socket.settimeout(IDLE_SECONDS)
        with contextlib.suppress(OSError, ProtocolError):
            while size_bytes := self._socket.recv_into(reader.writable()):
                reader.advance(size_bytes)
                for frame in reader.frames():
                    self._answer(decode_archive_request(frame))

    def _answer(self, request: ArchiveRequest) -> None:
        file: CachedFile | None = None
        answer: ArchiveAnswer
        try:
            self._reads.check(self._user, request)
            if isinstance(request, ListRetired):
                answer = RetiredList(self._reads.cores(request.topic))
            elif isinstance(request, ListArchived):
                answer = self._reads.listed(request)
            elif isinstance(request, OpenArchived):
                file = self._reads.opened(request)
                answer = self._opened(request.topic, file)
            else:
                answer = self._fetched(request)
        except QuiverError as error:
            file, answer = None, _refusal(error)
        self._send(answer, file)

    def _opened(self, topic: str, file: CachedFile) -> ArchivedOpened:
        number = next(self._numbers)
        self._files[number] = _OpenFile(topic, file)
        if len(self._files) > FILES_MAX:
            self._files.popitem(last=False)
        checksums = array.array("I", file.checksums)
        return ArchivedOpened(number, file.memory.nbytes, file.block_bytes, checksums.tobytes())

    def _fetched(self, request: FetchArchived) -> Done:
        found = self._files.get(request.file)
        if found is None or found.topic != request.topic:
            raise UsageError(f"file {request.file} is not open on this connection: open it again")
        self._files.move_to_end(request.file)
        blocks = request.blocks
        is_rising = all(one < other for one, other in itertools.pairwise(blocks))
        if (
            not is_rising
            or len(blocks) > BLOCKS_MAX
            or (blocks and not 0 <= blocks[0] <= blocks[-1] < len(found.file.checksums))
        ):
            raise UsageError(f"{len(blocks)} blocks were asked for that are not rising numbers of blocks of the file")
        found.file.fetch(blocks)
        return Done(0)

    def _send(self, answer: ArchiveAnswer, file: CachedFile | None) -> None:
        frame = encode_frame(answer)
        if file is None:
            self._socket.sendall(frame)
            return
        descriptor = file.descriptor()
        try:
            sent = socket.send_fds(self._socket, [frame], [descriptor])
        finally:
            os.close(descriptor)
        self._socket.sendall(memoryview(frame)[sent:])


class ArchiveServer:
    """The socket, and a thread for each client. `close` ends all of them."""

    def __init__(self, listener: Listener, reads: ArchiveReads) -> None:
        self._listener = listener
        self._reads = reads
        self._connected: dict[socket.socket, int] = {}
        """The user of each connection."""
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="archive-reads", daemon=True)

    def start(self) -> None:
        """Let clients in, on a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more, and end what is connected. Idempotent."""
        self._is_closed.set()
        self._thread.join()
        self._listener.close()
        with self._lock:
            for connected in self._connected:
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener.fd, select.POLLIN)
        while not self._is_closed.is_set():
            poll.poll(LOOK_MS)
            try:
                while (connected := self._listener.accept()) is not None:
                    self._let_in(connected)
            except OSError as error:
                logger.warning("quiver.archive.not_accepted error=%s", error)

    def _let_in(self, connected: socket.socket) -> None:
        uid = peer_of(connected).uid
        user = User(uid, os.getuid())
        with self._lock:
            limit = CONNECTIONS_MAX if user.is_operator else GUEST_CONNECTIONS_MAX
            of_user = Counter(self._connected.values())[uid]
            if of_user >= limit or len(self._connected) >= CONNECTIONS_MAX:
                connected.close()
                return
            self._connected[connected] = uid
        threading.Thread(target=self._serve, args=(connected, user), name="archive-read", daemon=True).start()

    def _serve(self, connected: socket.socket, user: User) -> None:
        try:
            ArchiveConnection(connected, user, self._reads).serve()
        finally:
            with self._lock:
                del self._connected[connected]
            connected.close()


def _stream_of(request: ListArchived | OpenArchived) -> StreamKey:
    return StreamKey(request.topic, request.incarnation, request.core)


def _refusal(error: QuiverError) -> Refused:
    # Errors of the object store have codes that clients need not know.
    code = StorageUnavailable.code if error.code.startswith("archive") else error.code
    return Refused(0, code, str(error))
