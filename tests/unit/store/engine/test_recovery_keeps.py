"""What recovery keeps aside of logs that are damaged, and whom it tells."""

from __future__ import annotations

import errno

import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import DiskError
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.decisions import Behind, Cursor, Entries, Header, Held, LogCase
from quiver_actors.store.wal.reader import LogReader
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.damages import put_file
from tests.support.engine_driver import EngineDriver
from tests.unit.store.engine.test_recovery_table import (
    DIRECTORY,
    LOG,
    PATHS,
    SEQUENCES,
    log_of,
    samples,
    served,
)
from tests.unit.store.wal.logs import reader_of


def changed(entry: bytes, at: int, content: bytes) -> bytes:
    """Return the entry with other bytes at that place, and a CRC that is right."""
    body = entry[4:at] + content + entry[at + len(content) : -4]
    return entry[:4] + body + crc32(body).to_bytes(4, "little")


def kept(disk: SimDisk) -> bytes:
    """Return the bytes in quarantine."""
    return b"".join(content for path, content in disk.contents().items() if path.startswith(PATHS.quarantine))


@pytest.mark.parametrize("header", [Header.OURS, Header.FOREIGN], ids=lambda header: header.value)
def test_entries_that_are_whole_and_no_bundles_are_kept_aside(header: Header) -> None:
    known, disk = samples(), SimDisk()
    case = LogCase(Cursor.NONE, header, Entries.NONE, Behind.END, Held.NOTHING, False)
    of_a_newer_type = changed(known.entries[1], layout.ENTRY_LENGTH_BYTES, b"\x09")
    without_its_slot = changed(known.entries[2], layout.ENTRY_HEAD.size, b"\x05")
    head = log_of(case).rstrip(b"\0").ljust(layout.HEADER_BYTES if header is Header.OURS else 38, b"\0")
    put_file(disk, LOG, head + known.entries[0] + of_a_newer_type + without_its_slot + bytes(4096))
    EngineDriver(OrderMonitor(disk), directory=DIRECTORY).run_background()
    assert served(disk) == [1]
    assert of_a_newer_type in kept(disk)
    assert without_its_slot in kept(disk)


def test_a_bundle_without_slots_of_another_writer_spoils_none_behind_it() -> None:
    """Its entry is shorter than what keeps the payloads aligned."""
    known, disk = samples(), SimDisk()
    case = LogCase(Cursor.NONE, Header.FOREIGN, Entries.NONE, Behind.END, Held.NOTHING, False)
    body = known.entries[1][4 : layout.ENTRY_HEAD.size - 8] + bytes(8)
    empty = len(body).to_bytes(4, "little") + body + crc32(body).to_bytes(4, "little")
    put_file(
        disk, LOG, log_of(case).rstrip(b"\0").ljust(38, b"\0") + known.entries[0] + empty + known.entries[2] + bytes(64)
    )
    EngineDriver(OrderMonitor(disk), directory=DIRECTORY).run_background()
    assert served(disk) == [1, 3]
    sequences = [
        (reader.sequence(index), sorted(reader.bundle(index)))
        for path, content in sorted(disk.contents().items())
        if path.endswith(".qseg")
        for reader in [SegmentReader(content)]
        for index in range(reader.bundle_count)
    ]
    assert sequences == [(1, [0]), (2, []), (3, [0])]


@pytest.mark.parametrize("count", [1, 3])
def test_entries_with_numbers_that_no_bundle_of_their_log_can_have_are_adopted(count: int) -> None:
    """They are whole: whoever has synced them wants them delivered."""
    known, disk = samples(), SimDisk()
    wild = [
        changed(entry, layout.ENTRY_LENGTH_BYTES + 9, (SEGMENT_BUNDLES_MAX + 1 + number).to_bytes(8, "little"))
        for number, entry in enumerate(known.entries[-count:])
    ]
    put_file(disk, LOG, known.header + b"".join([*known.entries[:-count], *wild]) + bytes(4096))
    driver = EngineDriver(OrderMonitor(disk), directory=DIRECTORY)
    driver.run_background()
    driver.engine.close()
    driver.reopen()
    driver.engine.registrations.register("late", "earliest")
    driver.run_background()
    assert driver.claim_numbers("late") == list(SEQUENCES)
    assert not driver.told
    assert not kept(disk)
    assert driver.push_numbered(7)[0].sequence > SEGMENT_BUNDLES_MAX


def test_damage_is_kept_once_however_often_a_start_is_cut_off() -> None:
    known, disk = samples(), SimDisk()
    damaged = known.entries[1][:90] + bytes([known.entries[1][90] ^ 1]) + known.entries[1][91:]
    put_file(disk, LOG, known.header + known.entries[0] + damaged + known.entries[2] + bytes(4096))
    for _ in range(2):
        faulty = FaultyDisk(disk)
        faulty.fail("rename", 1, errno.EIO, path_part=".qseg")
        with pytest.raises(DiskError):
            EngineDriver(faulty, directory=DIRECTORY)
    EngineDriver(disk, directory=DIRECTORY).run_background()
    assert served(disk) == [1, 3]
    assert [content for path, content in disk.contents().items() if path.startswith(PATHS.quarantine)] == [damaged]


def test_what_a_power_loss_leaves_out_before_a_bundle_that_it_kept_is_announced() -> None:
    """Neither was acknowledged, but nothing on the disk says so (docs/delivery.md)."""
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.settle()
    path = PATHS.active
    synced_end = driver.engine.figures().wal_bytes
    driver.push_numbered(1)
    driver.push_numbered(2)
    assert driver.engine.group_commit.sequence_durable == 1
    left = disk.crash(CrashMode.KEEP)
    content = left.contents()[path]
    scan = LogReader(reader_of(content), len(content)).scan(121, stride=64)
    lost = scan.entries[1]
    assert synced_end <= lost.end
    file = left.open_write(path)
    file.write([bytes(lost.end - lost.start)], lost.start)
    file.fsync()
    file.close()
    driver = EngineDriver(left)
    driver.settle()
    assert driver.claim_numbers("s") == [0, 2]
    assert [(gap.bundle_index_first, gap.bundle_count, gap.reason) for gap in driver.told] == [(1, 1, "damaged")]
