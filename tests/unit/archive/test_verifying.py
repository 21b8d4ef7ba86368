"""Reading all of an archive while its segments are merged and expire, and with each kind of object deleted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.archive import merging
from quiver_actors.archive.expiry import expire_stream
from quiver_actors.archive.manifest_store import StateUpload, read_head
from quiver_actors.archive.merging import KEPT_NS, Merging
from quiver_actors.archive.node_state import NodeState, encode_state
from quiver_actors.archive.reading.contents import NodeContents
from quiver_actors.archive.uploads import Throttle
from quiver_actors.archive.verifying import proven_segments, verify
from quiver_actors.store.objects.object_store import Found
from tests.support.archived import NODE, ArchiveWriter, sealed_segments
from tests.support.faulty_objects import FaultyStore

COUNT = 3


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    bundles: list[list[dict[str | int, pa.RecordBatch]]] = [
        [{0: pa.record_batch({"id": [number]})}] for number in range(COUNT)
    ]
    return sealed_segments(tmp_path_factory.mktemp("store"), bundles)


@pytest.fixture
def writer(contents: list[bytes], tmp_path: Path) -> ArchiveWriter:
    made = ArchiveWriter(f"file://{tmp_path}/objects")
    made.archive(dict(enumerate(contents)))
    made.manifest.record_state(StateUpload(encode_state(NodeState(node=NODE, taken_unix_ns=1, files={})), 1))
    return made


class Changing(FaultyStore):
    """A store in which the archiver merges all segments, or lets them expire, when the first of them is read."""

    def __init__(self, writer: ArchiveWriter, change: str) -> None:
        super().__init__(writer.store)
        self._writer = writer
        self._change = change

    def get(self, key: str) -> Found | None:
        if key.endswith(".qseg") and self._change:
            change, self._change = self._change, ""
            if change == "merge":
                merge(self._writer)
            else:
                (stream,) = self._writer.manifest.head.streams
                expire_stream(self._writer.store, self._writer.manifest, stream, 1 << 62)
                self._writer.manifest.collect_garbage(self._writer.manifest.head.garbage)
        return super().get(key)


def merge(writer: ArchiveWriter) -> None:
    """Merge the segments and delete their own objects."""
    now_ns = 1
    made = Merging(writer.store, NODE, 1 << 30, Throttle(0, print), lambda count: None, lambda: now_ns)
    for _ in range(8):
        made.advance(writer.manifest)
        made.wait()
        now_ns += KEPT_NS


@pytest.mark.parametrize(("change", "left"), [("merge", COUNT), ("expire", 0)])
def test_what_was_moved_or_has_expired_meanwhile_is_not_damaged(
    writer: ArchiveWriter, contents: list[bytes], monkeypatch: pytest.MonkeyPatch, change: str, left: int
) -> None:
    monkeypatch.setattr(merging, "PACK_SEGMENTS", COUNT)
    if change == "merge":
        found = list(proven_segments(Changing(writer, change), NODE, writer.stream))
        assert found == list(enumerate(contents))
        assert not list(writer.store.objects(f"{NODE}/default/x"))
    else:
        assert verify(Changing(writer, change), NODE, [writer.stream])[1] == []
    assert len(NodeContents(writer.store, NODE).contents(writer.stream).segments) == left


def test_a_merge_under_way_is_no_damage(writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PACK_SEGMENTS", COUNT)
    assert verify(Changing(writer, "merge"), NODE, [writer.stream]) == (COUNT, [])


@pytest.mark.parametrize("kind", ["segment", "checksums", "part", "state"])
def test_each_kind_of_object_that_somebody_deletes_is_named_and_the_rest_is_taken_out(
    writer: ArchiveWriter, contents: list[bytes], kind: str
) -> None:
    head = read_head(writer.store, NODE)
    assert head is not None
    assert head.state is not None
    (part,) = head.streams[0].parts
    segment = writer.key(1)
    key = {"segment": segment, "checksums": f"{segment}.crc", "part": part.key, "state": head.state.key}[kind]
    assert verify(writer.store, NODE, [writer.stream]) == (COUNT, [])
    writer.store.delete(key)
    _, (problem,) = verify(writer.store, NODE, [writer.stream])
    assert key in f"{problem.key} {problem.problem}"
    found = dict(proven_segments(writer.store, NODE, writer.stream))
    whole = {number: each for number, each in found.items() if isinstance(each, bytes)}
    lost = {"segment": {1}, "part": {0, 1, 2}}.get(kind, set())
    assert whole == {number: each for number, each in enumerate(contents) if number not in lost}
