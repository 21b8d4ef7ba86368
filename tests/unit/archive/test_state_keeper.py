"""The state of a node in its archive: what is read of a data directory that is in use, and when it is uploaded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import quiver_actors
from quiver_actors.archive import staged_bundles, state_keeper
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest import Owner
from quiver_actors.archive.manifest_store import Addition, ManifestWriter, read_state
from quiver_actors.archive.node_state import KnownSegment, NodeState, decode_state, encode_state
from quiver_actors.archive.staged_bundles import journal_of
from quiver_actors.archive.state_keeper import StateKeeper
from quiver_actors.archive.state_reading import engine_directories, take_state
from quiver_actors.archive.topic_archive import Behind, TopicArchive
from quiver_actors.embedded import Store
from quiver_actors.errors import ChecksumMismatch, FormatError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.cold_list import COLD_NAME, ColdEntry, ColdList, encode_cold_list
from quiver_actors.store.files.core_file import decode_core
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.staged.records import PublishedRecord, decode_prepared, encode_prepared
from quiver_actors.store.subscriber.progress import SubscriberProgress, encode_progress
from quiver_actors.store.subscriber.progress_journal import (
    JOURNAL_NAME,
    JournalRecord,
    base_of,
    encode_frame,
    encode_header,
)
from quiver_actors.transactions import Token
from tests.support.restorable import batch, info
from tests.unit.archive.test_manifest_store import a_segment

HOUR_NS = 3600 * 10**9


class Looked:
    """The part of a topic's archive that the keeper looks at."""

    def __init__(self, behind: dict[StreamKey, Behind] | None) -> None:
        self.behind = behind


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with quiver_actors.open(tmp_path / "data") as opened, opened.subscribe("reader", start="earliest"):
        opened.push(batch(0))
        opened.flush()
    return tmp_path / "data"


def own(store: ObjectStore) -> ManifestWriter:
    return ManifestWriter.own(store, "node", Owner(epoch=1, directory="d", start="s", since_unix_ns=1), None)


def stream_of(disk: PosixDisk) -> StreamKey:
    (engine,) = take_state(disk, "node", engine_directories(disk, "default")).engines
    return StreamKey(engine.topic, engine.incarnation, engine.core)


def state_in(writer: ManifestWriter, store: ObjectStore) -> NodeState:
    assert writer.head.state is not None
    return decode_state(read_state(store, writer.head.state))


def keep(keeper: StateKeeper, writer: ManifestWriter, behind: dict[StreamKey, Behind] | None) -> None:
    archives: dict[str, TopicArchive] = {"default": Looked(behind)}  # type: ignore[dict-item]
    keeper.keep(writer, archives)


def test_a_state_is_uploaded_when_it_has_changed_and_the_one_before_goes(store: ObjectStore, data: Path) -> None:
    disk, writer = PosixDisk(str(data)), own(store)
    stream = stream_of(disk)
    keeper = StateKeeper(disk, store, 0)
    assert not keeper.covers(stream)
    keep(keeper, writer, {stream: Behind()})
    first = writer.head
    assert first.state is not None
    assert keeper.covers(stream)
    assert not keeper.covers(stream._replace(core=1))
    keep(keeper, writer, {stream: Behind()})
    assert writer.head == first, "nothing has changed"
    with quiver_actors.open(data) as opened, opened.subscribe("another", start="earliest"):
        keep(keeper, writer, {stream: Behind()})
    assert writer.head.state != first.state
    assert first.state.key in writer.head.garbage
    (engine,) = state_in(writer, store).engines
    assert {"quiver.sub.reader", "quiver.sub.another", "quiver.core"} <= engine.files.keys()


def test_a_state_that_somebody_has_deleted_is_uploaded_again(
    store: ObjectStore, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quiver_actors.archive.state_keeper.THERE_INTERVAL_NS", 0)
    disk, writer = PosixDisk(str(data)), own(store)
    keeper, behind = StateKeeper(disk, store, HOUR_NS), {stream_of(disk): Behind()}
    keep(keeper, writer, behind)
    first = writer.head
    assert first.state is not None
    keep(keeper, writer, behind)
    assert writer.head == first
    store.delete(first.state.key)
    keep(keeper, writer, behind)
    assert [engine.topic for engine in state_in(writer, store).engines] == ["default"]


def test_between_two_intervals_only_another_shape_is_uploaded(store: ObjectStore, data: Path) -> None:
    disk, writer = PosixDisk(str(data)), own(store)
    stream = stream_of(disk)
    keeper = StateKeeper(disk, store, HOUR_NS)
    keep(keeper, writer, {stream: Behind()})
    first = writer.head
    with quiver_actors.open(data) as opened, opened.subscribe("another", start="earliest"):
        keep(keeper, writer, {stream: Behind()})
        assert writer.head == first
        (data / "quiver.topics").write_bytes(b"changed")
        keep(keeper, writer, {stream: Behind()})
        assert writer.head.commit == first.commit + 1
    keeper.begin_again(writer)
    keep(keeper, writer, {stream: Behind()})
    assert writer.head.commit == first.commit + 2


def test_stages_are_uploaded_some_at_a_time_and_segments_have_turns_in_between(
    store: ObjectStore, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_bundles, "TURN_BYTES", 1)
    with quiver_actors.open(data) as opened:
        for number in (1, 2, 3):
            with opened.stage(f"txn-{number}") as stage:
                stage.push(batch(number))
                stage.prepare()
        disk, writer = PosixDisk(str(data)), own(store)
        keeper = StateKeeper(disk, store, HOUR_NS)
        for count in (1, 2, 3, 3):
            keep(keeper, writer, {stream_of(disk): Behind()})
            (engine,) = state_in(writer, store).engines
            assert [stage.is_archived for stage in engine.prepared] == [True] * count + [False] * (3 - count)
        assert len(list(store.objects("node/manifest.stages"))) == 3


@pytest.mark.parametrize("waits", [False, True])
def test_a_stage_is_named_at_once_and_its_bundles_follow(
    store: ObjectStore, data: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(state_keeper, "NAMES_INTERVAL_NS", HOUR_NS if waits else 0)
    disk, writer, keeper = PosixDisk(str(data)), own(store), StateKeeper(PosixDisk(str(data)), store, HOUR_NS)
    stream = stream_of(disk)
    keep(keeper, writer, {stream: Behind()})
    with quiver_actors.open(data) as opened:
        tokens = [prepared(opened, "txn", 1)]
        keep(keeper, writer, {stream: Behind()})
        assert stages_of(writer, store) == [(tokens[0].number, False)]
        named = writer.head
        keep(keeper, writer, {stream: Behind()})
        assert writer.head == named, "it is named already"
        tokens.append(prepared(opened, "another", 2))
        keep(keeper, writer, {stream: Behind()})
        seen = tokens[:1] if waits else tokens
        assert stages_of(writer, store) == [(token.number, False) for token in seen]


def test_bundles_of_a_stage_that_somebody_waits_for_follow_at_once(
    store: ObjectStore, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, stream, keeper = keeping(store, data, monkeypatch)
    with quiver_actors.open(data) as opened:
        patient = prepared(opened, "txn", 1)
        keep(keeper, writer, {stream: Behind()})
        assert keeper.archived_stages == {}
        awaited = prepared(opened, "another", 2)
        record = data / "default" / "core_0" / "staged" / f"{awaited.number:016}.prepared"
        found = decode_prepared(record.read_bytes())
        record.write_bytes(encode_prepared(msgspec.structs.replace(found, is_awaited=True)))
        keep(keeper, writer, {stream: Behind()})
        assert dict(stages_of(writer, store))[awaited.number]
        assert awaited.number in keeper.archived_stages[stream]
        before = writer.head
        last = prepared(opened, "last", 3)
        keep(keeper, writer, {stream: Behind()})
        assert writer.head.commit == before.commit + 1
        assert stages_of(writer, store) == [(patient.number, True), (awaited.number, True), (last.number, False)]


def test_a_stage_whose_bundles_cannot_be_uploaded_is_tried_again_after_the_interval_only(
    store: ObjectStore, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, stream, keeper = keeping(store, data, monkeypatch)
    with quiver_actors.open(data) as opened:
        token = prepared(opened, "txn", 1)
        staged = data / "default" / "core_0" / "staged"
        record = staged / f"{token.number:016}.prepared"
        found = decode_prepared(record.read_bytes())
        record.write_bytes(encode_prepared(msgspec.structs.replace(found, is_awaited=True)))
        (part,) = staged.glob("*.stage")
        whole = part.read_bytes()
        part.write_bytes(b"?" * len(whole))
        keep(keeper, writer, {stream: Behind()})
        assert stages_of(writer, store) == [(token.number, False)], "it is damaged"
        part.write_bytes(whole)
        named = writer.head
        keep(keeper, writer, {stream: Behind()})
        assert writer.head == named
        assert keeper.archived_stages == {}


def prepared(opened: Store, txn_id: str, number: int) -> Token:
    with opened.stage(txn_id) as stage:
        stage.push(batch(number))
        token = stage.prepare()
    assert token is not None
    return token


def publish(opened: Store, token: Token) -> int:
    """Publish a stage. Returns its segment."""
    opened.publish(opened.decide(token.txn_id, 0, [token]).tokens)
    return opened.segments()[0][-1].segment_seq


def test_a_published_stage_stays_prepared_in_the_state_until_its_segment_is_archived(
    store: ObjectStore, data: Path
) -> None:
    disk, writer = PosixDisk(str(data)), own(store)
    stream, keeper = stream_of(disk), StateKeeper(disk, store, 0)
    with quiver_actors.open(data) as opened:
        token = prepared(opened, "txn", 1)
        keep(keeper, writer, {stream: Behind()})
        assert stages_of(writer, store) == [(token.number, True)]
        segment_seq = publish(opened, token)
        for archived in (None, *range(segment_seq)):
            if archived is not None:
                keeper.record(writer, stream, Addition([a_segment(archived)], [], archived))
            keep(keeper, writer, {stream: Behind()})
            assert stages_of(writer, store) == [(token.number, True)]
        (key,) = [each.key for each in store.objects("node/manifest.stages")]
        assert key not in writer.head.garbage
        keeper.record(writer, stream, Addition([a_segment(segment_seq)], [], segment_seq))
        assert stages_of(writer, store) == []
        assert key in writer.head.garbage
        keep(keeper, writer, {stream: Behind()})
        assert stages_of(writer, store) == []


def test_a_segment_is_recorded_with_where_its_stage_was_published(
    store: ObjectStore, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, stream, keeper = keeping(store, data, monkeypatch)
    with quiver_actors.open(data) as opened:
        token = prepared(opened, "txn", 1)
        keep(keeper, writer, {stream: Behind()})
        assert stages_of(writer, store) == [(token.number, False)]
        segment_seq = publish(opened, token)
        keeper.record(writer, stream, Addition([a_segment(0)], [], 0))
        (engine,) = state_in(writer, store).engines
        assert engine.prepared == (), "nothing of it is archived, so it cannot come back"
        assert journal_of(engine).published == [PublishedRecord(token.number, segment_seq, segment_seq)]


def keeping(
    store: ObjectStore, data: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ManifestWriter, StreamKey, StateKeeper]:
    """A keeper that has recorded the first state, and looks for new stages each time."""
    monkeypatch.setattr(state_keeper, "NAMES_INTERVAL_NS", 0)
    disk, writer = PosixDisk(str(data)), own(store)
    stream, keeper = stream_of(disk), StateKeeper(disk, store, HOUR_NS)
    keep(keeper, writer, {stream: Behind()})
    return writer, stream, keeper


def stages_of(writer: ManifestWriter, store: ObjectStore) -> list[tuple[int, bool]]:
    (engine,) = state_in(writer, store).engines
    return [(each.number, each.is_archived) for each in engine.prepared]


def test_parts_of_stages_that_no_state_names_go(store: ObjectStore, data: Path) -> None:
    disk, writer = PosixDisk(str(data)), own(store)
    left = "node/manifest.stages/default/ab/core_0/0000000000000001.0000.00000000.stage"
    store.put(left, [b"left"], 4)
    keep(StateKeeper(disk, store, HOUR_NS), writer, {stream_of(disk): Behind()})
    assert left in writer.head.garbage


def test_before_workers_were_asked_no_state_takes_the_place_of_a_better_one(store: ObjectStore, data: Path) -> None:
    disk, writer = PosixDisk(str(data)), own(store)
    keep(StateKeeper(disk, store, 0), writer, None)
    assert writer.head.state is None


def test_the_state_names_what_is_not_archived(store: ObjectStore, data: Path) -> None:
    disk, writer = PosixDisk(str(data)), own(store)
    stream = stream_of(disk)
    writer.commit({stream: Addition([a_segment(0)], [], 0)})
    keep(StateKeeper(disk, store, 0), writer, {stream: Behind([info(0, 1), info(1, 7)], [info(2, 3)], 3)})
    (engine,) = state_in(writer, store).engines
    assert engine.on_disk == ((0, 0),)
    assert engine.unarchived == (KnownSegment(1, 7, True), KnownSegment(2, 3, False))
    assert engine.next_segment_seq == 3
    assert decode_core(engine.files["quiver.core"]).incarnation.hex() == stream.incarnation


@pytest.mark.parametrize("is_torn", [False, True])
def test_progress_that_only_the_journal_has_is_in_the_state(data: Path, is_torn: bool) -> None:
    root = data / "default" / "core_0"
    filed = (root / "quiver.sub.reader").read_bytes()
    newer = encode_progress(SubscriberProgress(oldest_incomplete_seg=9, entries={}, trusted_watermark=True))
    marker = b"12345678"
    frame = encode_frame(marker, [JournalRecord("reader", base_of(filed), newer)])
    (root / JOURNAL_NAME).write_bytes(encode_header(marker) + frame[: -1 if is_torn else None])
    (engine,) = take_state(PosixDisk(str(data)), "node", ["default/core_0"]).engines
    assert engine.files["quiver.sub.reader"] == (filed if is_torn else newer)
    assert JOURNAL_NAME not in engine.files


def test_segments_on_the_cold_disk_count_as_on_the_disk(data: Path) -> None:
    listed = ColdList(b"0" * 16, "/cold", {7: ColdEntry(1000, b"end"), 8: ColdEntry(1000, b"end")})
    (data / "default" / "core_0" / COLD_NAME).write_bytes(encode_cold_list(listed))
    (engine,) = take_state(PosixDisk(str(data)), "node", ["default/core_0"]).engines
    assert engine.on_disk == ((0, 0), (7, 8))
    assert COLD_NAME not in engine.files, "the new node has no cold disk yet"


def test_a_state_that_was_changed_is_told(store: ObjectStore, data: Path) -> None:
    disk, writer = PosixDisk(str(data)), own(store)
    keep(StateKeeper(disk, store, 0), writer, {stream_of(disk): Behind()})
    assert writer.head.state is not None
    content = read_state(store, writer.head.state)
    for at in range(0, len(content), 7):
        changed = content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
        with pytest.raises(FormatError):
            decode_state(changed)
    store.put(writer.head.state.key, [content[:-1]], len(content) - 1)
    with pytest.raises(ChecksumMismatch):
        read_state(store, writer.head.state)
    assert encode_state(decode_state(content)) == content
