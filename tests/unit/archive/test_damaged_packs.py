"""Packs that are damaged or deleted in the store before the objects of their segments go: these are all that there is then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.archived import NODE, ArchiveWriter
from tests.unit.archive.test_merging import (
    PER_PACK,
    SMALL,
    Merger,
    _small_packs,
    check_whole,
    contents,
    ids_in,
    objects_in,
    opened,
    rows_in,
    writer,
)

__all__ = ["_small_packs", "contents", "writer"]


@pytest.mark.parametrize("is_deleted", [True, False])
def test_before_a_pack_is_whole_no_object_of_its_segments_goes(
    writer: ArchiveWriter, tmp_path: Path, is_deleted: bool
) -> None:
    merger = Merger(writer.store)
    merger.run(writer.manifest)
    before = objects_in(writer.store)
    pack = rows_in(writer.store)[0].pack
    assert pack is not None
    found = writer.store.get(pack.key)
    assert found is not None
    writer.store.delete(pack.key)
    if not is_deleted:
        writer.store.put(pack.key, [bytes(len(found.content))], len(found.content))
    merger.sweep(writer.manifest)
    gone = {f"{number:020d}.0.qseg" for number in range(PER_PACK, 2 * PER_PACK)}
    assert before - objects_in(writer.store) - {pack.key.rpartition("/")[2]} == gone | {f"{each}.crc" for each in gone}
    assert ids_in(opened(writer.store, tmp_path)) == list(range(2 * SMALL)), "they are read instead of the pack"


def test_other_bytes_under_the_key_of_a_pack_are_no_pack(writer: ArchiveWriter, tmp_path: Path) -> None:
    merger = Merger(writer.store)
    merger.merging.advance(writer.manifest)
    merger.merging.wait()
    (pack,) = [info for info in writer.store.objects(f"{NODE}/default") if info.key.endswith(".qpack")]
    writer.store.put(pack.key, [bytes(pack.size_bytes)], pack.size_bytes)
    Merger(writer.store).sweep(writer.manifest)  # as after a kill
    check_whole(writer.store, tmp_path)
