"""Bundles that are read from an archive equal the model: lost bundles, holes, several generations, some of them damaged; ranges and
projections."""

from __future__ import annotations

import uuid
from random import Random
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quiver_actors
from quiver_actors.archive.manifest import Hole, Segment
from quiver_actors.archive.reading.archive import Archive
from quiver_actors.base.model import BundleId
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.errors import DataLost, NotStored
from tests.support.archived import ArchiveWriter, hole
from tests.unit.store.segment.logfile import LogFile

Place = tuple[int, int]
Bundle = dict[int, pa.RecordBatch] | str
"""Batches by slot, or why the bundle is lost."""
REASONS = ("evicted", "expired", "damaged", "archive_expired")
COLUMNS = {0: ("id", "name"), 3: ("value", "kind", "deep")}


class Positioned(NamedTuple):
    """The entry of a segment number, and where the log went on behind it."""

    is_segment: bool
    end: int


class Model(NamedTuple):
    """What was archived, and where numbers are missing that may have been used."""

    bundles: dict[Place, Bundle]
    unproven: list[Place]
    """First number and end of each stretch."""

    @property
    def through(self) -> int:
        """The last segment number."""
        return max(self.bundles)[0]

    def between(self, start: Place | None, end: Place | None) -> dict[Place, Bundle]:
        """The bundles of a range; one for each stretch of missing numbers in it, or behind the start of it."""
        first = min(self.bundles) if start is None else start
        missing = {(max(low, first[0]), 0): "never_archived" for low, high in self.unproven if high > first[0]}
        found = self.bundles | missing
        return {place: found[place] for place in sorted(found) if place >= first and (end is None or place < end)}


def random_bundle(rng: Random) -> dict[int, pa.RecordBatch]:
    rows = rng.choice((0, 1, 7, 3000))
    batches = {
        0: pa.record_batch(
            {"id": pa.array([rng.getrandbits(40) for _ in range(rows)], pa.int64()), "name": [str(rows)] * rows}
        ),
        3: pa.record_batch(
            {
                "value": pa.array([rng.random() for _ in range(rows)], pa.float64()),
                "kind": pa.array([rng.choice("abc") for _ in range(rows)], pa.string()).dictionary_encode(),
                "deep": pa.array([[1, None][: rng.randint(0, 2)] for _ in range(rows)], pa.list_(pa.int8())),
            }
        ),
    }
    return {slot: batches[slot] for slot in sorted(rng.sample(sorted(batches), rng.randint(1, 2)))}


def random_segment(rng: Random, segment_seq: int) -> tuple[LogFile, list[Bundle]]:
    """A log, and its bundles; some were lost to damage before it was sealed."""
    log = LogFile(segment_seq)
    bundles: list[Bundle] = []
    for index in range(rng.randint(1, 8)):
        if rng.random() < 0.15:
            log.builder.append(100 + index, 0, -1, 0, ())
            bundles.append("damaged")
        else:
            bundle = random_bundle(rng)
            log.push(bundle)
            bundles.append(bundle)
    return log, bundles


def upload(rng: Random, writer: ArchiveWriter, segment_seq: int, log: LogFile) -> Segment:
    """Upload up to three generations, sealed in place or compacted; the manifest names one, and one of them at least is whole."""
    contents = {"sealed": log.seal(), "compacted": log.compacted()} if log.pushed else {"sealed": log.seal()}
    uploaded = [
        (writer.upload(segment_seq, content, generation), content)
        for generation, content in enumerate(rng.choice(list(contents.values())) for _ in range(rng.randint(1, 3)))
    ]
    whole = rng.randrange(len(uploaded))
    for generation, (_, content) in enumerate(uploaded):
        if generation != whole and rng.random() < 0.5:
            place = rng.randrange(len(content))
            damaged = content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
            writer.store.put(writer.key(segment_seq, generation), [damaged], len(damaged))
    return rng.choice(uploaded)[0]


def random_archive(rng: Random, url: str) -> Model:
    writer, model = ArchiveWriter(url), Model({}, [])
    segments: list[Segment] = []
    holes: list[Hole] = []
    segment_seq, before = -1, Positioned(True, 0)
    for _ in range(rng.randint(1, 6)):
        jump = rng.choice((1, 1, 1, 4))
        is_segment, start = rng.random() > 0.25, before.end + rng.choice((0, 10))
        if jump > 1 and not (is_segment and before.is_segment and start == before.end):
            model.unproven.append((segment_seq + 1, segment_seq + jump))
        segment_seq += jump
        before = Positioned(is_segment, start + 10)
        if is_segment:
            log, bundles = random_segment(rng, segment_seq)
            uploaded = upload(rng, writer, segment_seq, log)
            segments.append(msgspec.structs.replace(uploaded, position_start=start, position_end=before.end))
            model.bundles.update({(segment_seq, index): bundle for index, bundle in enumerate(bundles)})
            holes += [hole(segment_seq, index, 1, "damaged") for index, each in enumerate(bundles) if each == "damaged"]
        else:
            count, reason = rng.choice((0, 1, 5)), rng.choice(REASONS)
            holes.append(hole(segment_seq, 0, count, reason))
            model.bundles.update({(segment_seq, index): reason for index in range(max(1, count))})
        if rng.random() < 0.5:
            writer.record(segment_seq, segments, holes)
            segments, holes = [], []
    writer.record(segment_seq, segments, holes)
    return model


def values_of(bundle: Bundle) -> object:
    """Schemas and values. A dictionary may have grown by those of other bundles."""
    if isinstance(bundle, str):
        return bundle
    return {slot: (batch.schema, batch.to_pydict()) for slot, batch in bundle.items()}


def content_of(found: StoredBundle) -> Bundle:
    try:
        return dict(found.slots)
    except DataLost as error:
        return str(error).partition("(")[2].partition(")")[0]


def check_a_range(rng: Random, archive: Archive, model: Model) -> None:
    places = sorted(model.bundles)
    start = rng.choice([None, *places, (rng.randint(0, model.through), 0)])
    end = rng.choice([None, *places, (model.through + 1, 0)])
    slots = rng.choice([None, None, [0], [3], [0, 3]])
    chosen = COLUMNS.keys() if slots is None else slots
    columns: dict[str | int, list[str]] = {
        slot: rng.sample(COLUMNS[slot], rng.randint(0, len(COLUMNS[slot]))) for slot in chosen if rng.random() < 0.5
    }
    expected = {
        place: bundle
        if isinstance(bundle, str)
        else {slot: each.select(columns.get(slot, COLUMNS[slot])) for slot, each in bundle.items() if slot in chosen}
        for place, bundle in model.between(start, end).items()
    }
    bounds = [None if place is None else BundleId("default", 0, *place) for place in (start, end)]
    found = [
        (each.bundle_id[2:], values_of(content_of(each)))
        for each in archive.read("default", 0, *bounds, slots=slots, columns=columns)
    ]
    assert found == [(place, values_of(bundle)) for place, bundle in expected.items()]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_every_range_and_projection_is_as_in_the_model(seed: int) -> None:
    rng, url = Random(seed), f"memory://{uuid.uuid4().hex}"
    model = random_archive(rng, url)
    with quiver_actors.open_archive(url, cache_bytes=rng.choice((1, 1 << 30))) as archive:
        for _ in range(6):
            check_a_range(rng, archive, model)
        with pytest.raises(NotStored):
            archive.read("default", 0, None, BundleId("default", 0, model.through + 1, 1))
