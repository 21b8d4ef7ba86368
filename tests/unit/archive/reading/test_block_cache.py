"""The files of archived segments that are kept: so many bytes, so many descriptors, and none of a cache that is gone."""

from __future__ import annotations

import gc
import os
import resource
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.archive.blocks import sums_of
from quiver_actors.archive.reading.archive import Archive
from quiver_actors.archive.reading.block_cache import BlockCache, default_files_max
from quiver_actors.archive.reading.cached_file import CachedFile
from quiver_actors.archive.reading.contents import NodeContents
from tests.support.archived import NODE, ArchiveWriter, sealed_segments

CONTENT = bytes(1000)


def asked(cache: BlockCache, directory: Path, key: int) -> CachedFile:
    """The file of a key, all of which is fetched."""
    file = cache.file(
        key,
        lambda tell: CachedFile(str(directory), sums_of(CONTENT), lambda start, end: [CONTENT[start:end]], "x", tell),
    )
    file.fetch([0])
    return file


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_small_segments_take_a_share_of_the_descriptors_only(tmp_path: Path) -> None:
    """An archive of many small segments is within the bytes of a cache, and a process has 1,024 descriptors on most hosts: the read ended
    with `Too many open files`, and so did the archiver that served it.
    """
    before = descriptors()
    cache = BlockCache(1 << 30, files_max=4)
    first = asked(cache, tmp_path, 0)
    for key in range(1, 30):
        assert asked(cache, tmp_path, 0) is first, "what is used stays"
        asked(cache, tmp_path, key)
    assert descriptors() - before <= 2 * 4
    assert cache.size_bytes == 4 * len(CONTENT)
    cache.close()


def test_a_reader_keeps_the_file_that_the_cache_let_go(tmp_path: Path) -> None:
    cache = BlockCache(1 << 30, files_max=1)
    first = asked(cache, tmp_path, 0)
    asked(cache, tmp_path, 1)
    assert first.memory == CONTENT
    assert asked(cache, tmp_path, 0) is not first


def test_the_share_follows_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, files in ((1024, 128), (16, 8), (resource.RLIM_INFINITY, 131_072)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert default_files_max() == files


def test_an_archive_that_is_dropped_keeps_no_descriptor(tmp_path: Path) -> None:
    """Each file led to its cache and the cache to the file, so the collector had to come first."""
    (content,) = sealed_segments(tmp_path / "store", [[{0: pa.record_batch({"id": [1]})}]])
    writer = ArchiveWriter(f"memory://{uuid.uuid4().hex}")
    writer.archive({0: content})
    gc.collect()
    gc.disable()
    try:
        before = descriptors()
        archive = Archive(writer.store, NodeContents(writer.store, NODE), str(tmp_path), 1 << 30)
        assert archive.read_segment(0, "default", 0).bundle(0)[0].column("id").to_pylist() == [1]
        assert descriptors() > before
        del archive
        assert descriptors() == before
    finally:
        gc.enable()
