"""What a power loss leaves of bytes and names that were not synced yet. Pure: images and pending changes in, images out.

The rules of `store.disk.protocol`, read as badly as a real disk may read them:
- Of a file, what was synced is there. Each 512-byte sector that was written since is old or new (or, where it never held synced
  bytes, zero or garbage), and the size is any that the file had since.
- Of the names, what `sync_directory` made durable is there. Each later create, rename or unlink happened or did not; a rename never
  leaves both names or none, and a change never survives an earlier lost change of the same name.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512
PAGE_BYTES = 4096


class CrashMode(enum.Enum):
    """What a crash does to unsynced writes."""

    DROP = "drop"
    """Everything unsynced is lost."""
    KEEP = "keep"
    """Everything unsynced survives: the process was killed, the machine went on. Nothing becomes durable by that."""
    TEAR_SECTOR = "tear at 512"
    """Writes survive in their order up to some sector border; nothing behind it does."""
    TEAR_PAGE = "tear at 4096"
    ZERO_FILL = "zero-fill"
    """Lengths survive, some sectors are zero."""
    GARBLE = "garble"
    """Lengths survive, some sectors are garbage."""
    SIZE_FIRST = "size before data"
    """Lengths survive, no data does."""
    REORDER = "reorder"
    """Any subset of sectors; names in the order of a journal."""
    SCATTER = "scatter"
    """Any subset of sectors, any subset of independent names."""


class FileImage(NamedTuple):
    """A file as the disk holds it."""

    data: bytes = b""
    """What lies behind it, up to `size`, is zero."""
    size: int = 0
    read_only: bool = False
    sectors: int = 0
    """Bit n is set where sector n holds bytes that were written and synced: such a sector is never garbled."""


class Write(NamedTuple):
    offset: int
    data: bytes


class Resize(NamedTuple):
    size: int
    only_grows: bool


class ProtectFile(NamedTuple):
    """The file becomes read-only."""


FileChange = Write | Resize | ProtectFile


class NameChange(NamedTuple):
    """Names set (to a node) or removed (None) in one step; durable once `directory` is synced."""

    names: tuple[tuple[str, object | None], ...]
    directory: str

    @property
    def paths(self) -> set[str]:
        return {path for path, _ in self.names}

    def mapped(self, nodes: Mapping[int, object]) -> NameChange:
        """The same change with each node replaced by `nodes[id(node)]`."""
        return NameChange(
            tuple((path, None if node is None else nodes[id(node)]) for path, node in self.names), self.directory
        )


# --- bytes ---------------------------------------------------------------------------------------------------------------


def changed_size(size: int, change: FileChange) -> int:
    """The size of a file after a change."""
    if isinstance(change, Write):
        return max(size, change.offset + len(change.data))
    if isinstance(change, Resize):
        return max(size, change.size) if change.only_grows else change.size
    return size


def apply_change(data: bytearray, change: FileChange) -> None:
    """Do the change to a file's bytes."""
    if isinstance(change, Write):
        put(data, change.offset, change.data)
    elif isinstance(change, Resize) and not change.only_grows:
        del data[change.size :]


def put(data: bytearray, offset: int, piece: bytes) -> None:
    """Overwrite, with zeroes up to `offset` where the data ends before it."""
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(piece)] = piece


def apply_changes(image: FileImage, changes: Sequence[FileChange]) -> FileImage:
    """The image after all changes have become durable."""
    if not changes:
        return image
    data, size, read_only, sectors = bytearray(image.data), image.size, image.read_only, image.sectors
    for change in changes:
        apply_change(data, change)
        size = changed_size(size, change)
        read_only = read_only or isinstance(change, ProtectFile)
        if isinstance(change, Write) and change.data:
            sectors |= _sector_bits(change.offset, change.offset + len(change.data))
    return FileImage(bytes(data), size, read_only, sectors & _bits_below(size))


def _sector_bits(start: int, end: int) -> int:
    first = start // SECTOR_BYTES
    return ((1 << (end - 1) // SECTOR_BYTES - first + 1) - 1) << first


def _bits_below(size: int) -> int:
    return (1 << -(-size // SECTOR_BYTES)) - 1


def bytes_after_crash(durable: FileImage, pending: Sequence[FileChange], mode: CrashMode, random: Random) -> FileImage:
    """One of the images that a file may have after a power loss in that mode."""
    if mode is CrashMode.DROP or not pending:
        return durable
    if mode is CrashMode.KEEP:
        return apply_changes(durable, pending)
    read_only = durable.read_only or (any(isinstance(c, ProtectFile) for c in pending) and random.random() < 0.5)
    if mode in (CrashMode.TEAR_SECTOR, CrashMode.TEAR_PAGE):
        grain = SECTOR_BYTES if mode is CrashMode.TEAR_SECTOR else PAGE_BYTES
        torn = apply_changes(durable, _torn(pending, grain, random))
        return torn._replace(read_only=read_only)
    if mode in (CrashMode.REORDER, CrashMode.SCATTER):
        return _reordered(durable, pending, random)._replace(read_only=read_only)
    whole = apply_changes(durable, pending)._replace(read_only=read_only)
    return _ruined(durable, whole, mode, random)


def _torn(pending: Sequence[FileChange], grain: int, random: Random) -> list[FileChange]:
    """The changes up to one of them, of which only the part before a multiple of `grain` is left."""
    last = random.randrange(len(pending))
    kept, change = list(pending[:last]), pending[last]
    if not isinstance(change, Write):
        return [*kept, change]
    first = change.offset // grain
    border = random.randint(first, (change.offset + len(change.data)) // grain) * grain
    piece = change.data[: max(0, border - change.offset)]
    return [*kept, Write(change.offset, piece)] if piece else kept


def _reordered(durable: FileImage, pending: Sequence[FileChange], random: Random) -> FileImage:
    """Each sector as it was after some of the changes: the cache held one version of it and wrote that at some moment."""
    reached: dict[int, int] = {}
    data, sizes, sectors = bytearray(durable.data), [durable.size], durable.sectors
    for number, change in enumerate(pending):
        sizes.append(changed_size(sizes[-1], change))
        if not isinstance(change, Write):
            continue
        for start, end in _sector_pieces(change):
            sector = start // SECTOR_BYTES
            if sector not in reached:
                reached[sector] = random.randint(0, len(pending))
            if number < reached[sector]:
                put(data, start, change.data[start - change.offset : end - change.offset])
                sectors |= 1 << sector
    size = random.choice(sizes)
    del data[size:]
    return FileImage(bytes(data), size, durable.read_only, sectors & _bits_below(size))


def _sector_pieces(change: Write) -> list[tuple[int, int]]:
    """The byte ranges of a write, cut at sector borders."""
    end = change.offset + len(change.data)
    cuts = range((change.offset // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES)
    starts = [change.offset, *cuts]
    return list(zip(starts, [*cuts, end], strict=True))


def _ruined(durable: FileImage, whole: FileImage, mode: CrashMode, random: Random) -> FileImage:
    """All changes happened, but sectors that never held synced bytes are not what was written to them."""
    data, share = bytearray(whole.data), random.choice((1.0, 0.5, 0.1))
    if mode is CrashMode.SIZE_FIRST:
        share = 1.0
    for sector in _bit_numbers(whole.sectors & ~durable.sectors):
        if random.random() < share:
            start, end = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, whole.size)
            put(data, start, random.randbytes(end - start) if mode is CrashMode.GARBLE else bytes(end - start))
    if mode is CrashMode.SIZE_FIRST:
        _undo_shared_sectors(durable, data)
    return whole._replace(data=bytes(data))


def _undo_shared_sectors(durable: FileImage, data: bytearray) -> None:
    """Sectors with synced bytes in them keep exactly those."""
    for sector in _bit_numbers(durable.sectors):
        start = sector * SECTOR_BYTES
        end = min(start + SECTOR_BYTES, len(data))
        if start < end:
            data[start:end] = durable.data[start:end].ljust(end - start, b"\0")


def _bit_numbers(bits: int) -> list[int]:
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


# --- names ---------------------------------------------------------------------------------------------------------------


def apply_names(names: Mapping[str, object], changes: Sequence[NameChange]) -> dict[str, object]:
    """The names after the changes, in their order."""
    changed = dict(names)
    for change in changes:
        for path, node in change.names:
            if node is None:
                changed.pop(path, None)
            else:
                changed[path] = node
    return changed


def split_synced(pending: Sequence[NameChange], directory: str) -> tuple[list[NameChange], list[NameChange]]:
    """What syncing that directory makes durable, and what is pending still.

    A change takes along the earlier ones of its names. A rename is durable with the directory of its new name.
    """
    needed: set[str] = set()
    synced, rest = [], []
    for change in reversed(pending):
        if change.directory == directory or change.paths & needed:
            needed |= change.paths
            synced.append(change)
        else:
            rest.append(change)
    return synced[::-1], rest[::-1]


def surviving_names(pending: Sequence[NameChange], mode: CrashMode, random: Random) -> list[NameChange]:
    """The changes that a power loss in that mode leaves, in their order."""
    if mode is CrashMode.DROP or not pending:
        return []
    if mode is CrashMode.KEEP:
        return list(pending)
    if mode is CrashMode.SCATTER:
        return _independent(pending, lambda: random.random() < 0.5)
    # The ends are the likeliest states of a journal, and the ones that find most.
    return list(pending[: random.choice((0, len(pending), random.randint(0, len(pending))))])


def _independent(pending: Sequence[NameChange], survives: Callable[[], bool]) -> list[NameChange]:
    kept: list[NameChange] = []
    lost: set[str] = set()
    for change in pending:
        if survives() and not change.paths & lost:
            kept.append(change)
        else:
            lost |= change.paths
    return kept
