"""Times and sizes of bundles, and schemas, are read from a sealed segment; where its manifest does not say them they are not known."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.errors import ArrowError, FormatError
from quiver_actors.store.disk.protocol import DiskFile
from quiver_actors.store.segment.stored_manifest import entry_sizes_of, ingestion_times_of
from quiver_actors.store.segment.stored_schemas import read_schemas
from tests.disks.simulated import SimDisk
from tests.unit.store.segment.logfile import TIME, LogFile
from tests.unit.store.segment.test_compaction import of_an_unknown_type

GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "quiver-v1" / "segments" / "0000000000000000.qseg"


def stored(content: bytes) -> DiskFile:
    file = SimDisk().create("/segment")
    file.write([content], 0)
    return file


def log_with_a_lost_bundle() -> LogFile:
    log = LogFile()
    log.push({1: pa.record_batch({"a": [1]})})
    log.builder.append(101, 0, -1, 0, ())
    log.push({1: pa.record_batch({"a": list(range(100))})})
    return log


@pytest.mark.parametrize("is_compacted", [False, True])
def test_times_and_sizes_of_each_bundle_are_read(is_compacted: bool) -> None:
    log = log_with_a_lost_bundle()
    file = stored(log.compacted() if is_compacted else log.seal())
    assert ingestion_times_of(file).tolist() == [TIME + 100, 0, TIME + 102]
    sizes = entry_sizes_of(file)
    assert sizes is not None
    first, lost, third = sizes.tolist()
    assert lost == 0
    assert first + third == len(log.data) - 121, "whole entries behind the header of the log"
    assert third >= first + 99 * 8


def test_each_slot_of_a_bundle_has_a_place_of_its_own() -> None:
    log = LogFile()
    for number in range(2):
        log.push({1: pa.record_batch({"a": [number]}), 2: pa.record_batch({"b": ["x"]})})
    log.builder.append(102, 0, -1, 0, ())
    log.push({2: pa.record_batch({"b": ["y"]})})
    manifest = log.sealed().manifest
    (of_one, _), (of_two, _) = manifest.chunks(0)
    assert of_one != of_two
    assert [manifest.chunks(index) for index in range(4)] == [
        ((of_one, 0), (of_two, 0)),
        ((of_one, 1), (of_two, 1)),
        (),
        ((of_two, 2),),
    ]
    with pytest.raises(IndexError):
        manifest.chunks(4)


def test_times_and_sizes_that_another_writer_did_not_write_are_not_known() -> None:
    file = stored(GOLDEN.read_bytes())
    assert ingestion_times_of(file).tolist() == [0, 0, 0]
    assert entry_sizes_of(file) is None


def test_a_manifest_that_is_damaged_is_an_error() -> None:
    content = log_with_a_lost_bundle().seal()
    for read in (ingestion_times_of, entry_sizes_of):
        with pytest.raises(FormatError):
            read(stored(content[:-20]))


def test_a_schema_that_cannot_be_decoded_is_an_error() -> None:
    """A summary with it would promise rows that no reader of schemas can show."""
    log = LogFile()
    log.push_payloads({5: of_an_unknown_type(["a"])}, {5: bytes(32)}, {5: 1})
    content = log.seal()
    with pytest.raises(ArrowError, match="a stream's schema cannot be decoded"):
        read_schemas(lambda length, offset: content[offset : offset + length], len(content))
