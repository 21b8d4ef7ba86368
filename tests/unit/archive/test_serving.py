"""The archiver's socket and the client's way to it: rights, nonsense, limits, and what becomes of readers when a connection is lost."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.archive import serving
from quiver_actors.archive.descriptions import Wanted
from quiver_actors.archive.expiry import expire_stream
from quiver_actors.archive.reading.segment_files import SegmentFiles
from quiver_actors.archive.serving import ArchiveReads, ArchiveServer
from quiver_actors.base import rights
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.protocol.archive_messages import (
    ARCHIVE_SOCKET,
    ArchivedHole,
    ArchiveRequest,
    FetchArchived,
    ListArchived,
    ListRetired,
    OpenArchived,
)
from quiver_actors.base.protocol.messages import StatisticsList, TopicInfo
from quiver_actors.base.rights import Caller, User, Verdict
from quiver_actors.base.topics import Catalogue, Topic
from quiver_actors.client.archive_door import ArchiveDoor
from quiver_actors.client.archived_reader import ArchivedReader, ArchivedSegment
from quiver_actors.client.archived_reads import ArchivedReads, ArchivedStream
from quiver_actors.client.projection import EVERYTHING
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.statistics import statistics_in
from quiver_actors.errors import (
    ChecksumMismatch,
    DataLost,
    NotAllowed,
    NotStored,
    StorageUnavailable,
    UnknownTopic,
    WorkerUnavailable,
)
from quiver_actors.node.worker.listener import Listener
from quiver_actors.store.segment.ranged import RangedReader
from tests.support.archived import INCARNATION, NODE, ArchiveWriter, hole
from tests.support.faulty_objects import FaultyStore
from tests.unit.store.segment.logfile import LogFile

OWNER, GUEST, STRANGER = 2000, 3000, 4000
TOPIC = Topic(settings=TopicSettings(name="default", owner_uid=OWNER, allowed_uids=(GUEST,)))
USERS = {
    Caller.OPERATOR: User(0, 1000),
    Caller.OWNER: User(OWNER, 1000),
    Caller.GUEST: User(GUEST, 1000),
    Caller.STRANGER: User(STRANGER, 1000),
}
REQUESTS: tuple[ArchiveRequest, ...] = (
    ListArchived("default", 0, INCARNATION),
    OpenArchived("default", 0, INCARNATION, 0),
    FetchArchived("default", 1, [0]),
    ListRetired("default"),
)


def segment(segment_seq: int) -> bytes:
    log = LogFile(segment_seq)
    for index in range(3):
        log.push({0: pa.record_batch({"n": [10 * segment_seq + index]})})
    return log.seal()


class Served:
    """An archive of two segments and a hole, its server, and what a client's directory says of it."""

    def __init__(self, directory: Path) -> None:
        self.contents = [segment(seq) for seq in range(2)]
        self.writer = ArchiveWriter(f"memory://{uuid.uuid4().hex}")
        self.writer.archive(dict(enumerate(self.contents)), [hole(2, 0, 4, "expired")])
        self.run_dir = directory / "run"
        self.run_dir.mkdir()
        self.catalogue = Catalogue(topics={"default": TOPIC})
        self.files = SegmentFiles(self.writer.store, NODE, str(directory), 1 << 30)
        self.reads = ArchiveReads(self.writer.store, NODE, lambda: self.catalogue, self.files)
        self.server = self.started()

    def started(self) -> ArchiveServer:
        server = ArchiveServer(Listener(str(self.run_dir), ARCHIVE_SOCKET), self.reads)
        server.start()
        return server

    def restart(self) -> None:
        self.server.close()
        self.server = self.started()

    # What a door asks of a client's directory.

    def another(self) -> Served:
        return self

    def connect_to_archiver(self) -> socket.socket | None:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.connect(str(self.run_dir / ARCHIVE_SOCKET))
        except FileNotFoundError:
            connected.close()
            return None
        return connected


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.server.close()


@pytest.fixture
def door(served: Served) -> Iterator[ArchiveDoor]:
    door = ArchiveDoor(served, timeout_seconds=30.0)  # type: ignore[arg-type]
    yield door
    door.close()


def request(segment_seq: int = 0, copy: int = 0) -> OpenArchived:
    return OpenArchived("default", 0, INCARNATION, segment_seq, copy)


def numbers(reader: ArchivedReader | RangedReader) -> list[int]:
    return [reader.bundle(index)[0].column(0)[0].as_py() for index in range(reader.bundle_count)]


@pytest.mark.parametrize("asked", REQUESTS, ids=lambda asked: type(asked).__name__)
@pytest.mark.parametrize("caller", USERS)
def test_each_cell_of_the_table_of_rights_holds(served: Served, asked: ArchiveRequest, caller: Caller) -> None:
    verdict = rights.verdict(f"archive.{type(asked).__name__}", caller)
    if verdict is Verdict.YES:
        served.reads.check(USERS[caller], asked)
    else:
        with pytest.raises(NotAllowed, match=r"may not read the topic \(topic 'default'\)"):
            served.reads.check(USERS[caller], asked)


def test_a_topic_that_the_node_does_not_have_is_refused_to_everybody(served: Served) -> None:
    served.catalogue = Catalogue()
    for user in USERS.values():
        with pytest.raises(UnknownTopic):
            served.reads.check(user, REQUESTS[0])


def test_a_user_that_may_not_is_refused_over_the_socket(served: Served, door: ArchiveDoor) -> None:
    served.catalogue = Catalogue(topics={"default": Topic(settings=TopicSettings(name="default"))})
    assert door.listed("default", 0, INCARNATION, 0) is not None
    with pytest.raises(UnknownTopic):
        door.listed("other", 0, INCARNATION, 0)


def test_segments_and_holes_are_listed_and_read(served: Served, door: ArchiveDoor) -> None:
    listed = door.listed("default", 0, INCARNATION, 1)
    assert listed is not None
    assert [(info.segment_seq, info.bundle_count) for info in listed.segments] == [(1, 3), (2, 4)]
    assert listed.holes == [ArchivedHole(2, 0, 4, "expired")]
    assert listed.archived_through == 2
    for seq in (0, 1):
        assert numbers(RangedReader(door.opened(request(seq)))) == [10 * seq + index for index in range(3)]
    with pytest.raises(NotStored):
        door.opened(request(2))
    with pytest.raises(NotStored):
        door.opened(request(0, copy=1))
    other = door.listed("default", 0, "another incarnation", 0)
    assert other is not None
    assert (other.segments, other.archived_through) == ([], -1)


@pytest.mark.parametrize(
    "what", ["another archive", "one that has begun later", "no archiver", "another archive since it was listed"]
)
def test_a_subscriber_s_segment_that_the_archive_does_not_know_is_not_lost(
    served: Served, door: ArchiveDoor, what: str
) -> None:
    """`NotStored` would have the worker note for good that the bundle is lost: only what has expired is."""
    reads = ArchivedReads(door)
    stream = ArchivedStream("default", 0, INCARNATION)
    first, second = (
        reads.later(stream, seq, TopicSlots(TopicInfo("default", {}, "", 0)), EVERYTHING) for seq in (0, 1)
    )
    if what == "another archive since it was listed":
        first.check(0)
    other = ArchiveWriter(f"memory://{uuid.uuid4().hex}")
    served.reads = ArchiveReads(other.store, NODE, lambda: served.catalogue, served.files)
    served.restart()
    if what == "one that has begun later":
        other.archive({9: segment(9)})
    if what == "no archiver":
        served.server.close()
        (served.run_dir / ARCHIVE_SOCKET).unlink(missing_ok=True)
    with pytest.raises(StorageUnavailable, match="segment 1 of topic 'default'"):
        second.check(0)


def test_what_has_expired_in_the_archive_is_lost(served: Served, door: ArchiveDoor) -> None:
    writer = served.writer
    expire_stream(writer.store, writer.manifest, writer.manifest.head.streams[0], 1 << 62)
    with pytest.raises(NotStored):
        door.opened(request(0, copy=1))
    lost = ArchivedReads(door).later(
        ArchivedStream("default", 0, INCARNATION), 0, TopicSlots(TopicInfo("default", {}, "", 0)), EVERYTHING
    )
    with pytest.raises(DataLost, match="archive_expired"):
        lost.check(0)


def test_a_long_list_comes_in_parts(served: Served, door: ArchiveDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    served.writer.record(9, [served.writer.upload(9, served.contents[0])])
    whole = door.listed("default", 0, INCARNATION, 0)
    monkeypatch.setattr(serving, "LISTED_MAX", 1)
    assert door.listed("default", 0, INCARNATION, 0) == whole
    assert whole is not None
    assert [info.segment_seq for info in whole.segments] == [0, 1, 2, 3, 9]
    assert whole.holes[-1] == ArchivedHole(3, 0, 0, "never_archived")
    assert whole.archived_through == 9


def test_the_columns_of_segments_come_with_the_list_if_they_are_wanted(
    served: Served, door: ArchiveDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.writer.wanted = Wanted()
    for seq in (3, 4):
        served.writer.record(seq, [served.writer.upload(seq, segment(seq))])
    bare = door.listed("default", 0, INCARNATION, 0)
    whole = door.listed("default", 0, INCARNATION, 0, with_columns=True)
    monkeypatch.setattr(serving, "COLUMNS_BYTES_MAX", 1)
    parts = door.listed("default", 0, INCARNATION, 0, with_columns=True)
    assert bare is not None
    assert whole is not None
    assert parts is not None
    assert bare.columns == ()
    assert bare.segments == whole.segments == parts.segments
    for listed in (whole, parts):
        known = statistics_in(StatisticsList(0, list(listed.schemas), list(listed.columns)))
        assert known.keys() == {3, 4}
        assert known[3].may_have(0, "n", 31, 31)
        assert not known[3].may_have(0, "n", 33)
        assert known[4].may_have(0, "n", 42)


def test_what_is_archived_later_is_listed_then(served: Served, door: ArchiveDoor) -> None:
    before = door.listed("default", 0, INCARNATION, 0)
    served.writer.record(3, [served.writer.upload(3, served.contents[0])])
    after = door.listed("default", 0, INCARNATION, 0)
    assert before is not None
    assert after is not None
    assert (len(before.segments), len(after.segments)) == (3, 4)


def test_what_is_archived_later_is_opened_without_a_list_of_all_objects(served: Served, tmp_path: Path) -> None:
    counted = FaultyStore(served.writer.store)
    reads = ArchiveReads(counted, NODE, lambda: served.catalogue, SegmentFiles(counted, NODE, str(tmp_path), 1 << 30))
    reads.opened(request())
    served.writer.archive({3: segment(3)})
    assert reads.opened(request(3)).memory.nbytes == len(segment(3))
    assert "objects" not in counted.calls


def test_a_reader_opens_its_segment_again_when_its_connection_is_lost(served: Served, door: ArchiveDoor) -> None:
    def opened(copy: int) -> RangedReader:
        return RangedReader(door.opened(request(0, copy)))

    lost = door.opened(request(0))
    reader = ArchivedReader(ArchivedSegment("segment 0", 3, 3, True, lambda _: ""), opened)
    assert reader.slot_ids(0) == (0,)
    served.restart()
    with pytest.raises(WorkerUnavailable, match="restarted"):
        lost.fetch([0])
    assert numbers(reader) == [0, 1, 2]


def test_an_interrupted_request_leaves_no_answer_for_the_next_one(
    served: Served, door: ArchiveDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert door.listed("default", 0, INCARNATION, 0) is not None
    receive = socket.recv_fds

    def interrupted(*arguments: int) -> None:
        monkeypatch.setattr(socket, "recv_fds", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(socket, "recv_fds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        door.opened(request(0))
    listed = door.listed("default", 0, INCARNATION, 0)
    assert listed is not None
    assert listed.archived_through == 2


def test_damage_is_told_with_its_class_and_the_next_copy_is_read(served: Served, door: ArchiveDoor) -> None:
    served.writer.store.put(served.writer.key(0), [bytes(len(served.contents[0]))], len(served.contents[0]))
    with pytest.raises(ChecksumMismatch):
        RangedReader(door.opened(request(0)))
    served.writer.upload(0, served.contents[0], generation=4)
    described = ArchivedSegment("segment 0", 3, 3, True, lambda _: "")
    assert numbers(ArchivedReader(described, lambda copy: RangedReader(door.opened(request(0, copy))))) == [0, 1, 2]


def test_an_archive_that_cannot_be_read_is_unavailable(served: Served, door: ArchiveDoor) -> None:
    class Away:
        url = "s3://away"

        def get(self, key: str) -> None:
            from quiver_actors.store.objects.errors import ArchiveUnavailable

            raise ArchiveUnavailable("no answer")

    served.reads._store = Away()  # type: ignore[assignment]
    with pytest.raises(StorageUnavailable, match="no answer"):
        door.listed("default", 0, INCARNATION, 0)


def test_without_an_archiver_nothing_is_listed(served: Served) -> None:
    served.server.close()
    door = ArchiveDoor(served)  # type: ignore[arg-type]
    assert door.listed("default", 0, INCARNATION, 0) is None
    with pytest.raises(WorkerUnavailable):
        door.opened(request(0))


# --- nonsense ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [[-1], [1 << 40], [0, 0], [1, 0], [0] * 70_000])
def test_blocks_that_are_none_are_refused_and_the_connection_goes_on(
    served: Served, door: ArchiveDoor, blocks: list[int]
) -> None:
    answer, descriptor, generation = door.ask_open(request(0))
    os.close(descriptor)
    assert not door.ask_fetch("default", answer.file, generation, blocks)
    assert door.ask_fetch("default", answer.file, generation, [0])


def test_files_of_another_topic_or_connection_are_refused(served: Served, door: ArchiveDoor) -> None:
    served.catalogue = Catalogue(topics={"default": TOPIC, "other": TOPIC})
    answer, descriptor, generation = door.ask_open(request(0))
    os.close(descriptor)
    assert not door.ask_fetch("other", answer.file, generation, [0])
    assert not door.ask_fetch("default", answer.file + 1, generation, [0])


@pytest.mark.parametrize(
    "sent", [b"\xff\xff\xff\x7f", b"\x04\0\0\0\x93\xcc\xc8\xc0", b"\x01\0\0\0\xc1", b"\x02\0\0\0\x91\x07"]
)
def test_bytes_that_are_no_request_end_the_connection_and_nothing_else(
    served: Served, door: ArchiveDoor, sent: bytes
) -> None:
    hostile = served.connect_to_archiver()
    assert hostile is not None
    hostile.settimeout(30)
    hostile.sendall(sent)
    assert hostile.recv(100) == b""
    hostile.close()
    assert door.listed("default", 0, INCARNATION, 0) is not None


def test_one_user_has_so_many_connections(served: Served, door: ArchiveDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 3)
    several = [served.connect_to_archiver() for _ in range(3)]
    for each in several:
        assert each is not None
    refused = served.connect_to_archiver()
    assert refused is not None
    refused.settimeout(30)
    assert refused.recv(100) == b""
    for each in [*several, refused]:
        each.close()  # type: ignore[union-attr]


def test_a_connection_has_so_many_files_open(
    served: Served, door: ArchiveDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "FILES_MAX", 2)
    opened = []
    for _ in range(3):
        answer, descriptor, generation = door.ask_open(request(0))
        os.close(descriptor)
        opened.append((answer.file, generation))
    assert not door.ask_fetch("default", *opened[0], [0])
    assert door.ask_fetch("default", *opened[1], [0])


def test_the_descriptor_of_a_file_cannot_write(served: Served, door: ArchiveDoor) -> None:
    answer, descriptor, _ = door.ask_open(request(0))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(descriptor, b"x")
    os.close(descriptor)
    assert answer.size_bytes == len(served.contents[0])
