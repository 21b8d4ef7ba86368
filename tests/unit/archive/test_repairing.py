"""Parts of a manifest that are damaged or were deleted, built again from the segments: the same bundles under the same ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiver_actors.archive.keys import crc_key
from quiver_actors.archive.manifest_store import ManifestWriter, read_head
from quiver_actors.archive.packs import pack
from quiver_actors.archive.repairing import damaged_parts, repair
from quiver_actors.cli.main import main
from quiver_actors.errors import FormatError
from tests.disks.simulated import SimDisk
from tests.support.archived import NODE, ArchiveWriter
from tests.support.restorable import run, store_on
from tests.unit.archive.test_merging import (
    SMALL,
    Merger,
    _small_packs,
    check_whole,
    contents,
    ids_in,
    opened,
    rows_in,
)

__all__ = ["_small_packs", "contents"]


@pytest.fixture
def writer(contents: list[bytes], tmp_path: Path) -> ArchiveWriter:
    made = ArchiveWriter(f"file://{tmp_path}/objects")
    made.archive(dict(enumerate(contents)))
    return made


def break_part(writer: ArchiveWriter, *, is_deleted: bool) -> None:
    head = read_head(writer.store, NODE)
    assert head is not None
    (part,) = head.streams[0].parts
    if is_deleted:
        writer.store.delete(part.key)
    else:
        writer.store.put(part.key, [b"no part"], 7)


def run_repair(
    writer: ArchiveWriter, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, list[dict[str, object]]]:
    """The command's exit code, and its account of each part."""
    code = main(["archive", "repair", "--archive", writer.store.url, "--node", NODE, "--json", *more])
    return code, json.loads(capsys.readouterr().out)["parts"]


@pytest.mark.parametrize("is_deleted", [True, False])
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_part_is_built_again(
    writer: ArchiveWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_packed: bool, is_deleted: bool
) -> None:
    if is_packed:
        Merger(writer.store).sweep(writer.manifest)
    before = rows_in(writer.store)
    break_part(writer, is_deleted=is_deleted)
    with pytest.raises(FormatError, match="quiver archive repair"):
        ids_in(opened(writer.store, tmp_path))
    for mode in ("--dry-run", "--yes"):
        code, (row,) = run_repair(writer, capsys, mode)
        assert (code, row["segments"], row["lost"]) == (0, SMALL, 0)
    check_whole(writer.store, tmp_path)
    kept = ("segment_seq", "bundle_count", "row_count", "size_bytes", "crc32", "last_ingestion_unix_ns", "pack")
    assert [[getattr(row, name) for name in kept] for row in rows_in(writer.store)] == [
        [getattr(row, name) for name in kept] for row in before
    ]
    assert run_repair(writer, capsys, "--yes") == (0, [])


def test_a_segment_that_is_gone_too_is_a_hole_and_the_rest_is_read(
    writer: ArchiveWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer.store.put(writer.key(1), [bytes(100)], 100)
    writer.store.delete(crc_key(writer.key(3)))
    break_part(writer, is_deleted=True)
    code, (row,) = run_repair(writer, capsys, "--yes")
    assert (code, row["segments"], row["lost"]) == (1, SMALL - 2, 2)
    archive = opened(writer.store, tmp_path)
    assert [(gap.segment_seq, gap.bundle_count, gap.reason) for gap in archive.gaps("default")] == [
        (1, None, "damaged"),
        (3, None, "damaged"),
    ]
    assert [row.segment_seq for row in rows_in(writer.store)] == [0, 2, 4, 5, 6]


def test_of_generations_that_hold_different_bundles_none_is_taken(
    writer: ArchiveWriter, contents: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    writer.upload(2, contents[5], generation=1)
    break_part(writer, is_deleted=True)
    code, (row,) = run_repair(writer, capsys, "--yes")
    assert (code, row["lost"]) == (1, 1)
    assert [row.segment_seq for row in rows_in(writer.store)] == [0, 1, 3, 4, 5, 6]


def test_a_pack_that_was_given_up_and_is_all_that_is_left_stays(
    writer: ArchiveWriter, contents: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = pack(NODE, writer.stream, zip(rows_in(writer.store)[:3], contents[:3], strict=True))
    writer.store.put(made.key, made.pieces(), made.size_bytes)
    writer.manifest.release(made.key)
    for number in range(3):
        writer.store.delete(writer.key(number))
    break_part(writer, is_deleted=True)
    run_repair(writer, capsys, "--yes")
    writer.manifest.check_owner()
    writer.manifest.collect_garbage(writer.manifest.head.garbage)
    check_whole(writer.store, tmp_path)


def test_the_archiver_goes_on_behind_a_repair(
    writer: ArchiveWriter, contents: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_part(writer, is_deleted=True)
    run_repair(writer, capsys, "--yes")
    writer.manifest.check_owner()
    writer.record(SMALL, [writer.upload(SMALL, contents[0])])
    assert [row.segment_seq for row in rows_in(writer.store)] == list(range(SMALL + 1))


def test_a_restore_is_refused_until_the_part_is_built_again(objects: SimDisk) -> None:
    store = store_on(objects)
    head = read_head(store, NODE)
    assert head is not None
    (stream,) = head.streams
    store.delete(stream.parts[0].key)
    with pytest.raises(FormatError, match="quiver archive repair"):
        run(SimDisk(), store)
    assert read_head(store, NODE) == head, "nothing was taken over"
    for damaged in damaged_parts(store, NODE, stream):
        repair(ManifestWriter.own(store, NODE, head.owner, head.owner), damaged)
    restored = run(SimDisk(), store)
    assert [each.segment_seq for each in restored.plan.engines[0].segments] == [0, 1, 2]
    assert restored.damaged == []
