"""A core that the node does not have any more: what is asked of its archive, and what becomes of plans that were made before it went."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.archive import merging
from quiver_actors.archive.expiry import expire_stream
from quiver_actors.archive.reading.segment_files import SegmentFiles
from quiver_actors.archive.serving import ArchiveReads, ArchiveServer
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.archive_messages import ARCHIVE_SOCKET, RetiredCore
from quiver_actors.base.protocol.messages import (
    SCHEMA_LISTS,
    AckThrough,
    ListSchemas,
    ListSegments,
    ListStatistics,
    ListSubscribers,
    ListTopics,
    OpenSegment,
    Pending,
    PendingInfo,
    SchemaList,
    SegmentColumns,
    SegmentList,
    StatisticsList,
    SubscriberList,
    TopicInfo,
    TopicList,
)
from quiver_actors.base.topics import Catalogue, Topic
from quiver_actors.client import Client, connect
from quiver_actors.client.archived_reads import ArchivedReads
from quiver_actors.errors import NotStored, StorageUnavailable, UnknownCore
from quiver_actors.flight.archived_contents import ArchivedNames, ArchiveTerms
from quiver_actors.flight.contract import (
    Acknowledge,
    AskSlotRows,
    AskWeights,
    BundleRange,
    ColumnTerm,
    CoreContents,
    HoldTerms,
    Look,
    ReadTicket,
    RetiredTerms,
    SlotRows,
    WantedRows,
    schema_bytes,
)
from quiver_actors.flight.local import LocalNode
from quiver_actors.node.worker.listener import Listener
from quiver_actors.query.conditions import parse_terms
from quiver_actors.store.jobs.statistics import compute_statistics
from quiver_actors.store.objects.errors import ArchiveUnavailable
from tests.support.archived import NODE, ArchiveWriter
from tests.unit.archive.test_merging import Merger
from tests.unit.client.peer import Peer, PeerSession, refuse
from tests.unit.store.segment.logfile import LogFile

RETIRED = "b" * 32
FORMER = "c" * 32
"""Incarnations of core 1: of the directory that is retired, and of one that another topic of this name had."""
SCHEMA = pa.schema([("n", pa.int64())])


def segment(segment_seq: int, first: int) -> bytes:
    log = LogFile(segment_seq)
    for n in range(first, first + 3):
        log.push({0: pa.record_batch([pa.array([n], pa.int64())], schema=SCHEMA)})
    return log.seal()


class Retired:
    """A node of one core that has had two: of the second one the archive has two segments with the rows 0 to 5."""

    def __init__(self, directory: Path) -> None:
        self.run_dir = directory
        self.asked: list[str] = []
        self.cores = [RetiredCore(1, RETIRED, 2)]
        self.writer = ArchiveWriter(f"memory://{uuid.uuid4().hex}", core=1, incarnation=RETIRED)
        self.writer.archive({0: segment(0, 0), 1: segment(1, 3)})
        former = ArchiveWriter(f"memory://{uuid.uuid4().hex}", core=1, incarnation=FORMER)
        former.store, former.manifest = self.writer.store, self.writer.manifest
        former.archive({0: segment(0, 70), 1: segment(1, 73), 2: segment(2, 76)})
        files = SegmentFiles(self.writer.store, NODE, str(directory), 1 << 30)
        catalogue = Catalogue(topics={"default": Topic(settings=TopicSettings(name="default"))})
        self.reads = ArchiveReads(self.writer.store, NODE, lambda: catalogue, files, self.told)
        self.server = ArchiveServer(Listener(str(directory), ARCHIVE_SOCKET), self.reads)
        self.server.start()

    def told(self, topic: str) -> list[RetiredCore]:
        self.asked.append(topic)
        return self.cores

    def record(self, *, retired: tuple[int, ...] = (1,), has_archiver: bool = True) -> None:
        """Write what the supervisor tells clients."""
        document = {
            "version": 1,
            "pid": os.getpid(),
            "data_dir": "unused",
            "started_unix_ns": 1,
            "node": NODE,
            "cores": [{"core": 0, "socket": "core_0.sock"}],
            "retired": retired,
            "has_archiver": has_archiver,
        }
        (self.run_dir / "node.json").write_text(json.dumps(document))


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    with Peer(tmp_path) as peer:
        peer.features = SCHEMA_LISTS
        peer.handlers |= {ListSegments: empty, ListTopics: one_topic, ListSchemas: no_schemas}
        yield peer


@pytest.fixture
def retired(peer: Peer) -> Iterator[Retired]:
    retired = Retired(peer.run_dir)
    retired.record()
    yield retired
    retired.server.close()


@pytest.fixture
def client(retired: Retired) -> Iterator[Client]:
    with connect(retired.run_dir) as client:
        yield client


@pytest.fixture
def node(client: Client) -> LocalNode:
    return LocalNode(NODE, lambda: client)


def empty(session: PeerSession, message: object) -> bool:
    assert isinstance(message, ListSegments)
    session.send(SegmentList(message.tag, [], next_segment_seq=0, incarnation="a" * 32, is_complete=True))
    return True


def one_topic(session: PeerSession, message: object) -> bool:
    assert isinstance(message, ListTopics)
    session.send(TopicList(message.tag, [TopicInfo("default", {}, "wal", 0, is_archived=True)]))
    return True


def no_schemas(session: PeerSession, message: object) -> bool:
    assert isinstance(message, ListSchemas)
    session.send(SchemaList(message.tag, []))
    return True


def look(node: LocalNode, terms: RetiredTerms | None, archive: ArchiveTerms | None = None) -> list[CoreContents]:
    return node.look(Look("default", reads_unsealed=True, archive=archive, retired=terms)).cores


def rows(node: LocalNode, *ranges: BundleRange, archived: ArchivedNames | None = None) -> list[int]:
    ticket = ReadTicket("default", {"0": 0}, list(ranges), schema_bytes(SCHEMA), archived=archived)
    return [n for batch in node.read(ticket) for n in batch.column(0).to_pylist()]


def test_what_the_archive_has_of_the_directory_is_told_and_nothing_of_a_former_topic(node: LocalNode) -> None:
    served, core = look(node, RetiredTerms(), ArchiveTerms())
    assert (served.core, served.is_retired, served.readable) == (0, False, [])
    assert (core.core, core.is_retired, core.incarnation, core.comes_next) == (1, True, RETIRED, 2)
    assert [(info.segment_seq, info.bundle_count) for info in core.readable] == [(0, 3), (1, 3)]
    names = ArchivedNames(RETIRED, {0: 3, 1: 3})
    assert rows(node, BundleRange(1, 0, 1, 3), BundleRange(1, 1, 0, 3), archived=names) == [1, 2, 3, 4, 5]
    assert [[pa.ipc.read_schema(pa.py_buffer(each)) for each in node.schemas("default", archive=True).by_slot[0]]] == [
        [SCHEMA]
    ]


def test_the_archiver_is_asked_only_where_cores_are_gone_that_are_wanted(node: LocalNode, retired: Retired) -> None:
    assert [core.core for core in look(node, None)] == [0]
    assert [core.core for core in look(node, RetiredTerms([0]))] == [0]
    retired.record(retired=())
    assert [core.core for core in look(node, RetiredTerms())] == [0]
    assert retired.asked == []
    retired.record()
    assert [core.core for core in look(node, RetiredTerms([0, 1]))] == [0, 1]
    assert retired.asked == ["default"]


def test_a_node_without_an_archiver_has_nothing_of_such_a_core(node: LocalNode, retired: Retired) -> None:
    retired.record(has_archiver=False)
    assert [core.core for core in look(node, RetiredTerms())] == [0]
    assert retired.asked == []


def test_a_core_that_is_served_again_is_read_there(node: LocalNode, retired: Retired) -> None:
    retired.cores = [RetiredCore(0, "a" * 32), RetiredCore(1, RETIRED, 2)]
    assert [core.core for core in look(node, RetiredTerms())] == [0, 1]


def test_where_such_a_core_ends_needs_no_object_store_if_it_was_closed_cleanly(
    node: LocalNode, retired: Retired
) -> None:
    class Away:
        url = "s3://away"

        def get(self, key: str) -> None:
            raise ArchiveUnavailable("no answer")

    assert look(node, RetiredTerms())[1].comes_next == 2
    retired.cores = [RetiredCore(1, RETIRED)]
    found = look(node, RetiredTerms())[1]
    assert (found.comes_next, found.archived) == (2, None)
    retired.reads._store = Away()  # type: ignore[assignment]
    retired.reads._contents = None
    with pytest.raises(StorageUnavailable, match="no answer"):
        look(node, RetiredTerms(), ArchiveTerms())
    retired.cores = [RetiredCore(1, RETIRED, 2)]
    assert look(node, RetiredTerms())[1].comes_next == 2
    assert look(node, RetiredTerms(), ArchiveTerms({1: (2, 0)}))[1].archived is None


def test_a_plan_is_read_though_its_core_has_gone_since(node: LocalNode) -> None:
    """The ticket does not name the segment as archived: it was on the disk, and its core had a worker."""
    assert rows(node, BundleRange(1, 0, 2, 3), BundleRange(1, 1, 0, 1)) == [2, 3]
    weights = node.weights(AskWeights("default", 1, 1, None, 0, 3))
    assert weights.rows == [1, 1, 1]
    with pytest.raises(NotStored):
        rows(node, BundleRange(1, 7, 0, 1))


def test_a_plan_is_read_though_its_segments_have_been_merged_since(
    node: LocalNode, retired: Retired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PACK_SEGMENTS", 2)
    look(node, RetiredTerms(), ArchiveTerms())
    Merger(retired.writer.store).sweep(retired.writer.manifest)
    assert retired.writer.store.head(retired.writer.key(0)) is None
    names = ArchivedNames(RETIRED, {0: 3, 1: 3})
    assert rows(node, BundleRange(1, 0, 1, 3), BundleRange(1, 1, 0, 3), archived=names) == [1, 2, 3, 4, 5]
    assert rows(node, BundleRange(1, 1, 0, 3)) == [3, 4, 5]


def test_where_the_archive_has_more_of_a_segment_its_statistics_count_and_not_those_of_the_disk(
    node: LocalNode, retired: Retired, peer: Peer
) -> None:
    """The row that is wanted was lost on the disk: what is left there has no such value."""
    streams, left = compute_statistics(memoryview(segment(0, 70)), None)
    (schema, count) = streams[0]

    def statistics(session: PeerSession, message: object) -> bool:
        assert isinstance(message, ListStatistics)
        known = [SegmentColumns(seq, [(0, count)], left) for seq in (0, 1)]
        session.send(StatisticsList(message.tag, [(0, schema.message)], known))
        return True

    peer.handlers |= {ListStatistics: statistics, OpenSegment: refuse("not_stored")}
    writer = ArchiveWriter(f"memory://{uuid.uuid4().hex}", incarnation="a" * 32)
    writer.store, writer.manifest = retired.writer.store, retired.writer.manifest
    writer.archive({0: segment(0, 0)})
    wanted = WantedRows(0, schema_bytes(SCHEMA), [ColumnTerm(*term) for term in parse_terms("n < 7")])
    assert node.slot_rows(AskSlotRows("default", {}, [], wanted)).unmatched == {0: [0, 1]}
    named = AskSlotRows("default", {}, [], wanted, {0: ArchivedNames("a" * 32, {0: 3})})
    assert node.slot_rows(named) == SlotRows({0: {0: {0: 3}}}, {0: [1]})


def test_what_has_expired_there_since_is_told(node: LocalNode, retired: Retired) -> None:
    stream = retired.writer.manifest.head.stream(retired.writer.stream)
    assert stream is not None
    expire_stream(retired.writer.store, retired.writer.manifest, stream, 1 << 62)
    (_, core) = look(node, RetiredTerms(), ArchiveTerms({1: (1, 0)}))
    assert core.readable == []
    assert core.begins_behind((1, 0))
    assert core.archived is not None
    assert [hole.reason for hole in core.archived.holes] == ["archive_expired"]


def test_a_query_that_is_done_with_such_a_core_goes_on_without_the_archiver(
    node: LocalNode, retired: Retired, peer: Peer
) -> None:
    def pending(session: PeerSession, message: object) -> bool:
        assert isinstance(message, Pending)
        session.send(PendingInfo(message.tag, 0, 0, 0, 0, 0, 0, -1, 0, 0, True))
        return True

    def subscribers(session: PeerSession, message: object) -> bool:
        assert isinstance(message, ListSubscribers)
        session.send(SubscriberList(message.tag, []))
        return True

    def held(segment_seq: int) -> list[CoreContents]:
        starts = {0: (0, 0), 1: (segment_seq, 0)}
        terms = ArchiveTerms(starts)
        hold = HoldTerms("query", 10**12, starts)
        request = Look("default", hold=hold, reads_unsealed=True, archive=terms, retired=RetiredTerms([0, 1]))
        return node.look(request).cores

    peer.handlers |= {Pending: pending, ListSubscribers: subscribers}
    assert [len(core.readable) for core in held(0)] == [0, 2]
    assert [core.comes_next for core in held(2)] == [0, 2]
    retired.server.close()
    assert [core.comes_next for core in held(2)] == [0, 2]
    assert retired.asked == ["default"]
    node.close()


def test_acknowledgements_of_a_core_that_is_gone_are_no_errors(node: LocalNode, retired: Retired, peer: Peer) -> None:
    node.acknowledge(Acknowledge("default", "query", 1, 1, 2))
    node.acknowledge(Acknowledge("default", "query", 0, 0, 0))
    assert len(peer.of_type(AckThrough)) == 1
    retired.cores = []
    with pytest.raises(UnknownCore, match="has no core 1"):
        node.acknowledge(Acknowledge("default", "query", 1, 1, 2))


def test_a_client_reads_a_range_and_a_dataset_of_it(client: Client, retired: Retired) -> None:
    def read(*place: int) -> list[int]:
        start = BundleId("default", 1, *place) if place else None
        return [each.batch.column(0)[0].as_py() for each in client.read("default", 1, start)]

    assert read(0, 0) == list(range(6))
    assert read(0, 2) == [2, 3, 4, 5]
    assert read() == [], "a range without a start begins with what is on the disk"
    assert [info.segment_seq for info in client.archived("default")[1]] == [0, 1]
    assert isinstance(client.archived_reads, ArchivedReads)
    retired.cores = []
    with pytest.raises(UnknownCore, match="has no core 1"):
        read(0, 0)
