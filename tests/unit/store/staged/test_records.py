"""The small files of transactions: what is encoded is decoded, and a newer version is never touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import UnsupportedVersion
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.staged.keys import KeyRun, Windows
from quiver_actors.store.staged.records import (
    DroppedRecord,
    JournalRecord,
    PartRecord,
    PreparedRecord,
    PublishingRecord,
    StageOrder,
    decode_journal,
    decode_prepared,
    encode_journal,
    encode_prepared,
)
from tests.support.engine_driver import EngineDriver
from tests.unit.store.inspection.stores import snapshot

ORDER = StageOrder("t", 1, 2, 3, "s3://bucket/decisions", 10**9)
PREPARED = PreparedRecord(7, ORDER, bytes(16), b"QUIVER_SEGCFG\0\0\0", [PartRecord(1, 2, 3, 4, b"12345678")], 5, 6)
JOURNAL = JournalRecord(9, [PublishingRecord(1, 0, 2, 3, 4)], [DroppedRecord(5, "t", 0, "why", 6)], 2)


def windows() -> bytes:
    found = Windows()
    found.add("p", KeyRun(1, 2, 3, 4, 5))
    return found.encode()


FILES = {
    "quiver.transactions": encode_journal(JOURNAL),
    "quiver.producers": windows(),
    "staged/0000000000000007.prepared": encode_prepared(PREPARED),
}


def test_what_was_encoded_is_decoded() -> None:
    assert decode_prepared(encode_prepared(PREPARED)) == PREPARED
    assert decode_journal(encode_journal(JOURNAL)) == JOURNAL


@pytest.mark.parametrize("name", FILES)
def test_a_newer_version_is_refused_and_nothing_is_changed(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "default" / "core_0"
    EngineDriver(PosixDisk(str(tmp_path))).engine.close()
    data = FILES[name]
    newer = data[:8] + (2).to_bytes(2, "little") + data[10:-4]
    (directory / "staged").mkdir()
    (directory / "staged" / "leftover.tmp").write_bytes(b"")
    (directory / name).write_bytes(newer + crc32(newer).to_bytes(4, "little"))
    before = snapshot(tmp_path)
    with pytest.raises(UnsupportedVersion, match="version 2"):
        EngineDriver(PosixDisk(str(tmp_path)))
    assert snapshot(tmp_path) == before
