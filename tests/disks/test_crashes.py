"""The rules of a power loss, on bytes and on names: what may be left, what must be left, what must never be."""

from __future__ import annotations

from random import Random

import pytest

from tests.disks.crashes import (
    SECTOR_BYTES,
    CrashMode,
    FileChange,
    FileImage,
    NameChange,
    ProtectFile,
    Resize,
    Write,
    apply_changes,
    apply_names,
    bytes_after_crash,
    split_synced,
    surviving_names,
)

SEEDS = range(60)
POWER_LOSSES = [mode for mode in CrashMode if mode is not CrashMode.KEEP]
DURABLE = apply_changes(FileImage(), [Write(0, b"d" * 1300)])
PENDING: list[FileChange] = [Write(1300, b"p" * 3000), Resize(20_000, only_grows=True), Write(4300, b"q" * 500)]


def left(mode: CrashMode, seed: int, pending: list[FileChange] = PENDING) -> FileImage:
    return bytes_after_crash(DURABLE, pending, mode, Random(seed))


def text(image: FileImage) -> bytes:
    return image.data[: image.size].ljust(image.size, b"\0")


# --- bytes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", POWER_LOSSES)
def test_synced_bytes_are_always_left(mode: CrashMode) -> None:
    assert all(text(left(mode, seed))[:1300] == b"d" * 1300 for seed in SEEDS)


@pytest.mark.parametrize("mode", CrashMode)
def test_without_pending_changes_every_crash_leaves_the_same(mode: CrashMode) -> None:
    assert bytes_after_crash(DURABLE, [], mode, Random(1)) is DURABLE


@pytest.mark.parametrize("mode", CrashMode)
def test_the_same_seed_leaves_the_same(mode: CrashMode) -> None:
    assert left(mode, 5) == left(mode, 5)


def test_drop_and_keep_leave_nothing_and_everything() -> None:
    assert left(CrashMode.DROP, 0) is DURABLE
    assert text(left(CrashMode.KEEP, 0)) == (b"d" * 1300 + b"p" * 3000 + b"q" * 500).ljust(20_000, b"\0")


@pytest.mark.parametrize(("mode", "grain"), [(CrashMode.TEAR_SECTOR, 512), (CrashMode.TEAR_PAGE, 4096)])
def test_a_tear_leaves_a_prefix_that_ends_at_a_border(mode: CrashMode, grain: int) -> None:
    images = [left(mode, seed) for seed in SEEDS]
    ends = {len(text(image).rstrip(b"\0")) for image in images}
    assert all(end in (1300, 4300, 4800) or end % grain == 0 for end in ends)
    assert len(ends) > 2
    whole = text(left(CrashMode.KEEP, 0))
    assert all(whole.startswith(text(image).rstrip(b"\0")) for image in images)


def test_zero_fill_keeps_the_size_and_clears_sectors_that_were_never_synced() -> None:
    images = [left(CrashMode.ZERO_FILL, seed) for seed in SEEDS]
    assert {image.size for image in images} == {20_000}
    assert any(text(image)[1536:4800].strip(b"\0") == b"" for image in images), "all of them"
    assert any(0 < text(image)[1536:4800].count(0) < 3264 for image in images), "some of them"
    assert all(text(image)[1300:1536] == b"p" * 236 for image in images), "not the one that holds synced bytes"


def test_garbling_leaves_neither_old_nor_new_bytes() -> None:
    images = [left(CrashMode.GARBLE, seed) for seed in SEEDS]
    assert any(set(text(image)[1536:4800]) - set(b"pq\0") for image in images)
    assert all(text(image)[1300:1536] == b"p" * 236 for image in images)


def test_size_before_data_leaves_lengths_without_contents() -> None:
    assert text(left(CrashMode.SIZE_FIRST, 0)) == (b"d" * 1300).ljust(20_000, b"\0")


@pytest.mark.parametrize("mode", [CrashMode.REORDER, CrashMode.SCATTER])
def test_reordering_leaves_any_subset_of_sectors_and_any_size(mode: CrashMode) -> None:
    images = [left(mode, seed) for seed in range(300)]
    assert {image.size for image in images} == {1300, 4300, 20_000}
    assert any(b"\0" in text(image)[1300:4000] and text(image)[4096:4300] == b"p" * 204 for image in images), "a hole"
    for image in images:
        for start in range(1536, image.size, SECTOR_BYTES):
            sector = text(image)[start : start + SECTOR_BYTES].rstrip(b"\0")
            assert set(sector) <= set(b"pq")


def test_a_sector_is_as_it_was_after_some_of_its_writes() -> None:
    pending: list[FileChange] = [Write(1300, b"1"), Write(1301, b"2"), Write(1302, b"3")]
    tails = {text(left(CrashMode.REORDER, seed, pending))[1300:] for seed in range(400)}
    assert {tail.rstrip(b"\0") for tail in tails} == {b"", b"1", b"12", b"123"}


def test_protection_survives_or_not() -> None:
    pending: list[FileChange] = [ProtectFile()]
    assert {left(CrashMode.REORDER, seed, pending).read_only for seed in SEEDS} == {False, True}
    assert not left(CrashMode.DROP, 0, pending).read_only
    assert left(CrashMode.KEEP, 0, pending).read_only


def test_truncating_loses_what_lay_behind() -> None:
    cut = apply_changes(DURABLE, [Resize(600, only_grows=False), Write(700, b"x")])
    assert text(cut) == b"d" * 600 + bytes(100) + b"x"


# --- names ---------------------------------------------------------------------------------------------------------------

CREATE = NameChange((("wal/a.tmp", 1),), "wal")
RENAME = NameChange((("wal/a.tmp", None), ("wal/a", 1)), "wal")
MOVE = NameChange((("wal/a", None), ("segments/a", 1)), "segments")
OTHER = NameChange((("wal/b", 2),), "wal")
UNLINK = NameChange((("segments/old", None),), "segments")
CHANGES = [CREATE, RENAME, OTHER, MOVE, UNLINK]


def outcomes(mode: CrashMode, before: dict[str, object], changes: list[NameChange]) -> set[frozenset[str]]:
    return {frozenset(apply_names(before, surviving_names(changes, mode, Random(seed)))) for seed in range(300)}


@pytest.mark.parametrize("mode", CrashMode)
def test_a_rename_leaves_one_of_both_names(mode: CrashMode) -> None:
    for names in outcomes(mode, {"wal/a": 1}, [MOVE]):
        assert len(names & {"wal/a", "segments/a"}) == 1


@pytest.mark.parametrize("mode", CrashMode)
def test_replacing_a_file_never_leaves_none(mode: CrashMode) -> None:
    before: dict[str, object] = {"core": "old"}
    replaced = [NameChange((("core.tmp", "new"),), "."), NameChange((("core.tmp", None), ("core", "new")), ".")]
    for seed in SEEDS:
        assert apply_names(before, surviving_names(replaced, mode, Random(seed)))["core"] in ("old", "new")


def test_a_journal_keeps_the_order_of_all_changes() -> None:
    prefixes = {frozenset(apply_names({"segments/old": 0}, CHANGES[:count])) for count in range(len(CHANGES) + 1)}
    assert outcomes(CrashMode.REORDER, {"segments/old": 0}, CHANGES) == prefixes


def test_scattered_changes_survive_independently_but_not_without_what_they_rest_on() -> None:
    found = outcomes(CrashMode.SCATTER, {"segments/old": 0}, CHANGES)
    assert frozenset(["segments/old", "wal/b"]) in found, "a later change without the earlier ones"
    assert frozenset(["segments/a"]) in found
    assert not any("segments/a" in names and "wal/a.tmp" in names for names in found)


def test_a_sync_of_a_directory_covers_its_names_and_what_they_rest_on() -> None:
    assert split_synced(CHANGES, "segments") == ([CREATE, RENAME, MOVE, UNLINK], [OTHER])
    assert split_synced(CHANGES, "wal") == ([CREATE, RENAME, OTHER], [MOVE, UNLINK])
    assert split_synced(CHANGES, "elsewhere") == ([], CHANGES)
