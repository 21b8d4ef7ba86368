"""A manifest's head that is lost or damaged, built again from what else is in the store: all bundles again, and nobody's archive."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quiver_actors.archive.head_repair import AHEAD, find_head, lost_head, write_head
from quiver_actors.archive.keys import crc_key, head_key
from quiver_actors.archive.manifest import Head, decode_head, encode, key_of
from quiver_actors.archive.manifest_store import ManifestWriter, StateUpload, read_head, read_part
from quiver_actors.archive.node_state import NodeState, encode_state
from quiver_actors.archive.ownership import become_owner, take_over
from quiver_actors.archive.restoring.small_files import SEGMENTS_AHEAD
from quiver_actors.cli.main import main
from quiver_actors.errors import FormatError, UsageError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.objects.errors import ArchiveFenced, ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectStore
from tests.disks.simulated import SimDisk
from tests.support.archived import NODE, ArchiveWriter, hole
from tests.support.faulty_objects import FAULTS, FaultyStore
from tests.support.restorable import run, store_on
from tests.unit.archive.test_merging import (
    SMALL,
    Merger,
    _small_packs,
    check_whole,
    contents,
    opened,
    rows_in,
)

__all__ = ["_small_packs", "contents"]
HEAD = head_key(NODE)


@pytest.fixture
def writer(contents: list[bytes]) -> Iterator[ArchiveWriter]:
    made = ArchiveWriter(f"memory://{uuid.uuid4().hex}")
    made.slots = {"page": 0}
    for number, content in enumerate(contents):
        made.record(number, [made.upload(number, content)])
    state = NodeState(node=NODE, taken_unix_ns=5, files={})
    made.manifest.record_state(StateUpload(encode_state(state), 5))
    yield made
    made.store.close()


def lose_head(store: ObjectStore, how: str) -> None:
    if how == "gone":
        store.delete(HEAD)
    else:
        content = {"garbage": b"\xff\x00garbage", "empty": b"", "cut": encode(head_of(store))[:-40]}[how]
        store.put(HEAD, [content], len(content))


def head_of(store: ObjectStore) -> Head:
    found = read_head(store, NODE)
    assert found is not None
    return found


def rebuilt(store: ObjectStore) -> Head:
    lost = lost_head(store, NODE)
    assert lost is not None
    found = find_head(store, NODE, lost)
    assert found is not None
    return write_head(store, found)


def run_repair(writer: ArchiveWriter, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["archive", "repair", "--archive", writer.store.url, "--node", NODE, "--json", *more])
    return code, json.loads(capsys.readouterr().out)["head"]


@pytest.mark.parametrize("how", ["gone", "garbage", "empty", "cut"])
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_head_is_built_again(
    writer: ArchiveWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, is_packed: bool
) -> None:
    if is_packed:
        Merger(writer.store).run(writer.manifest)
    before, rows = head_of(writer.store), rows_in(writer.store)
    lose_head(writer.store, how)
    code, dry = run_repair(writer, capsys, "--dry-run")
    assert (code, dry["streams"][0]["segments"]) == (0, SMALL)
    assert lost_head(writer.store, NODE) is not None, "nothing was written"
    code, told = run_repair(writer, capsys, "--yes")
    assert (code, told["problems"], told["streams"][0]["lost"]) == (0, [], 0)
    after = head_of(writer.store)
    assert (rows_in(writer.store), after.state) == (rows, before.state)
    stream = after.streams[0]
    assert (stream.slots, stream.archived_through, stream.expired_through) == ({"page": 0}, SMALL - 1, -1)
    assert after.commit > before.commit
    assert after.owner.epoch == told["epoch"] > before.owner.epoch
    check_whole(writer.store, tmp_path)
    assert run_repair(writer, capsys, "--yes") == (0, None), "a head that is whole is left alone"


def test_packs_of_a_head_that_was_lost_are_swept_as_before(writer: ArchiveWriter, tmp_path: Path) -> None:
    Merger(writer.store).run(writer.manifest)
    store = writer.store
    lose_head(store, "gone")
    head = rebuilt(store)
    assert [each.key for each in head.streams[0].unswept] == sorted(
        {row.pack.key for row in rows_in(store) if row.pack}
    )
    Merger(store).sweep(ManifestWriter.own(store, NODE, head.owner, head.owner))
    assert len([info for info in store.objects(f"{NODE}/default") if info.key.endswith(".qseg")]) == 1
    check_whole(store, tmp_path)


@pytest.mark.parametrize("is_packed", [True, False])
def test_parts_that_are_lost_too_are_built_of_the_segments(
    writer: ArchiveWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_packed: bool
) -> None:
    if is_packed:
        Merger(writer.store).sweep(writer.manifest)
    lose_head(writer.store, "gone")
    for info in list(writer.store.objects(f"{NODE}/manifest.parts")):
        writer.store.delete(info.key)
    code, told = run_repair(writer, capsys, "--yes")
    assert (told["streams"][0]["lost"], told["streams"][0]["named_by_no_part"]) == (0, SMALL)
    assert "which slots" in told["problems"][-1]
    assert code == 1
    check_whole(writer.store, tmp_path)


def test_each_byte_of_a_part_may_be_another_one(writer: ArchiveWriter, tmp_path: Path) -> None:
    (*_, ref) = head_of(writer.store).streams[0].parts
    found = writer.store.get(ref.key)
    assert found is not None
    lose_head(writer.store, "gone")
    lost = lost_head(writer.store, NODE)
    assert lost is not None
    for at in range(0, len(found.content), 41):
        damaged = bytearray(found.content)
        damaged[at] ^= 1 << at % 8
        writer.store.put(ref.key, [bytes(damaged)], len(damaged))
        again = find_head(writer.store, NODE, lost)
        assert again is not None
        assert [row.segment_seq for row in again.streams[0].segments] == list(range(SMALL))
        sizes = [(row.size_bytes, row.bundle_count) for row in again.streams[0].segments]
        assert sizes == [(row.size_bytes, 2) for row in again.streams[0].segments]
    rebuilt(writer.store)
    check_whole(writer.store, tmp_path)


def test_what_is_lost_is_a_hole_and_is_told(
    writer: ArchiveWriter, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    writer.store.delete(writer.key(2))
    writer.store.put(writer.key(4), [bytes(100)], 100)
    lose_head(writer.store, "gone")
    code, told = run_repair(writer, capsys, "--yes")
    (stream,) = told["streams"]
    assert (code, stream["segments"], stream["lost"]) == (1, SMALL - 2, 2)
    archive = opened(writer.store, tmp_path)
    assert [(gap.segment_seq, gap.bundle_count, gap.reason) for gap in archive.gaps("default")] == [
        (2, None, "damaged"),
        (4, None, "damaged"),
    ]


def test_holes_stay_and_what_came_back_is_none_any_more(writer: ArchiveWriter, tmp_path: Path) -> None:
    writer.record(SMALL, holes=[hole(SMALL, bundle_count=3)])
    writer.store.put(f"{writer.key(1)}.kept", [b"x"], 1)
    lose_head(writer.store, "gone")
    head = rebuilt(writer.store)
    assert head.streams[0].archived_through == SMALL
    archive = opened(writer.store, tmp_path)
    assert [(gap.segment_seq, gap.bundle_count, gap.reason) for gap in archive.gaps("default")] == [
        (SMALL, 3, "evicted")
    ]


def test_first_segments_that_are_gone_may_have_expired(
    writer: ArchiveWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        writer.store.delete(writer.key(number))
        writer.store.delete(crc_key(writer.key(number)))
    lose_head(writer.store, "gone")
    code, told = run_repair(writer, capsys, "--yes")
    assert code == 1
    assert (
        "segments 0 to 1: parts or objects name 2 of them, and none is there: they have expired, or are lost"
        in told["problems"][0]
    )
    assert [row.segment_seq for row in rows_in(writer.store)] == list(range(2, SMALL))
    assert head_of(writer.store).streams[0].expired_through == 1, (
        "a subscriber that is owed them is told, and does not wait"
    )


def test_numbers_that_a_restore_has_left_out_are_not_lost(
    writer: ArchiveWriter, contents: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    far = SMALL + SEGMENTS_AHEAD
    writer.upload(far, contents[0])
    writer.upload(far + 3, contents[4])
    lose_head(writer.store, "gone")
    _, told = run_repair(writer, capsys, "--yes")
    assert told["streams"][0]["lost"] == 2, "those between the last two"
    assert head_of(writer.store).streams[0].archived_through == far + 3


def test_of_two_contents_of_one_segment_that_nothing_names_none_is_believed(
    writer: ArchiveWriter, contents: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy of the directory that ran as well may have uploaded its own bundles under the same number."""
    writer.upload(SMALL, contents[0])
    writer.upload(SMALL, contents[1], generation=1)
    lose_head(writer.store, "gone")
    _, told = run_repair(writer, capsys, "--yes")
    assert "hold different bundles" in told["problems"][0]
    assert told["streams"][0]["lost"] == 1


def test_of_two_contents_the_one_that_a_part_names_is_taken(
    writer: ArchiveWriter, contents: list[bytes], tmp_path: Path
) -> None:
    writer.upload(3, contents[0], generation=1)
    lose_head(writer.store, "gone")
    rebuilt(writer.store)
    check_whole(writer.store, tmp_path)


def test_every_owner_is_fenced_until_a_directory_takes_over(writer: ArchiveWriter, tmp_path: Path) -> None:
    store, place = writer.store, tmp_path / "data"
    place.mkdir()
    disk = PosixDisk(str(place))
    take_over(disk, store, NODE)
    running = become_owner(disk, store, NODE)
    lose_head(store, "garbage")
    with pytest.raises(FormatError, match="quiver archive repair"):
        running.check_owner()
    epoch = rebuilt(store).owner.epoch
    for call in (running.check_owner, lambda: running.release("node-a/x"), lambda: become_owner(disk, store, NODE)):
        with pytest.raises(ArchiveFenced, match="take-over"):
            call()
    take_over(disk, store, NODE)
    assert become_owner(disk, store, NODE).head.owner.epoch == epoch + 1
    disk.close()


def test_the_epoch_is_beyond_what_a_damaged_head_still_says(writer: ArchiveWriter) -> None:
    head = head_of(writer.store)
    far = msgspec.structs.replace(head, commit=9 << 40, owner=msgspec.structs.replace(head.owner, epoch=8 << 40))
    content = encode(far)[:-20]
    writer.store.put(HEAD, [content], len(content))
    head = rebuilt(writer.store)
    assert head.commit == (9 << 40) + AHEAD
    assert head.owner.epoch > 8 << 40


def test_an_earlier_head_that_was_put_back_is_built_again(
    writer: ArchiveWriter, contents: list[bytes], tmp_path: Path
) -> None:
    earlier = encode(head_of(writer.store))
    for number in (SMALL, SMALL + 1):
        writer.record(number, [writer.upload(number, contents[0])])
    assert lost_head(writer.store, NODE) is None
    writer.store.put(HEAD, [earlier], len(earlier))
    rebuilt(writer.store)
    assert [row.segment_seq for row in rows_in(writer.store)] == list(range(SMALL + 2))
    assert lost_head(writer.store, NODE) is None


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("how", ["gone", "garbage"])
def test_a_repair_that_fails_anywhere_is_made_again(
    writer: ArchiveWriter, tmp_path: Path, how: str, fault: str
) -> None:
    before = head_of(writer.store)
    for at in range(100):
        lose_head(writer.store, how)
        faulty = FaultyStore(writer.store, at, fault)
        with contextlib.suppress(ArchiveUnavailable):
            rebuilt(faulty)
        if lost_head(writer.store, NODE) is not None:
            rebuilt(writer.store)
        assert [row.segment_seq for row in rows_in(writer.store)] == list(range(SMALL))
        head = head_of(writer.store)
        assert head.state == before.state
        ManifestWriter.own(writer.store, NODE, head.owner, head.owner).collect_garbage(head.garbage)
        if at >= len(faulty.calls):
            break
    else:
        raise AssertionError("a repair makes fewer calls")
    check_whole(writer.store, tmp_path)


def test_two_repairs_at_a_time_write_one_head(writer: ArchiveWriter, tmp_path: Path) -> None:
    lose_head(writer.store, "garbage")
    lost = lost_head(writer.store, NODE)
    assert lost is not None
    first, second = (find_head(writer.store, NODE, lost) for _ in range(2))
    assert first is not None
    assert second is not None
    head = write_head(writer.store, first)
    with pytest.raises(ArchiveUnavailable, match="look again"):
        write_head(writer.store, second)
    assert head_of(writer.store) == head
    check_whole(writer.store, tmp_path)


def test_what_a_running_node_deletes_meanwhile_is_not_named(writer: ArchiveWriter) -> None:
    lose_head(writer.store, "gone")
    lost = lost_head(writer.store, NODE)
    assert lost is not None
    found = find_head(writer.store, NODE, lost)
    assert found is not None
    writer.store.delete(writer.key(0))
    with pytest.raises(ArchiveUnavailable, match="if the node runs, stop it"):
        write_head(writer.store, found)
    assert lost_head(writer.store, NODE) is not None


def test_a_restore_goes_on_behind_a_repair(objects: SimDisk) -> None:
    store = store_on(objects)
    before = head_of(store)
    store.delete(HEAD)
    with pytest.raises(UsageError, match="quiver archive repair"):
        run(SimDisk(), store)
    rebuilt(store)
    restored = run(SimDisk(), store)
    assert [each.segment_seq for each in restored.plan.engines[0].segments] == [0, 1, 2]
    assert restored.damaged == []
    assert head_of(store).owner.epoch > before.owner.epoch


def test_only_a_topic_of_a_lost_head_cannot_be_repaired(
    writer: ArchiveWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_head(writer.store, "gone")
    assert (
        main(["archive", "repair", "--archive", writer.store.url, "--node", NODE, "--topic", "default", "--yes"]) == 2
    )
    assert main(["archive", "ls", "--archive", writer.store.url, "--node", NODE]) == 2
    assert "quiver archive repair" in capsys.readouterr().err


def test_every_byte_of_a_head_may_be_another_one_and_is_noticed(writer: ArchiveWriter) -> None:
    head = head_of(writer.store)
    content = encode(head)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        try:
            assert decode_head(bytes(damaged)) == head
        except FormatError:
            continue


def test_a_head_and_parts_of_an_older_program_are_read(writer: ArchiveWriter, tmp_path: Path) -> None:
    """They have no checksum of their own; what their parts say is compared with the objects."""
    store = writer.store
    refs = head_of(store).streams[0].parts
    for ref in refs:
        plain = msgspec.json.encode(read_part(store, ref))
        store.put(ref.key, [plain], len(plain))
    assert decode_head(msgspec.json.encode(head_of(store))) == head_of(store)
    lose_head(store, "gone")
    rebuilt(store)
    check_whole(store, tmp_path)
    assert all(store.head(key_of(NODE, writer.stream, row)) for row in rows_in(store))
