"""The list of topics as a file: a crash at any step leaves one version or the other, and damage is never guessed at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.topics import Catalogue, Deletion, Topic
from quiver_actors.errors import FormatError, InvalidFormat, UnsupportedVersion
from quiver_actors.node.topics.catalogue import read_catalogue, write_catalogue
from quiver_actors.store.disk.interposed import MUTATING_KINDS, Call, InterposedDisk
from quiver_actors.store.disk.protocol import write_atomically
from quiver_actors.store.files.topic_list import CATALOGUE_NAME, decode_catalogue, encode_catalogue
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk

Result = TypeVar("Result")
SEEDS = range(6)


def catalogue(version: int) -> Catalogue:
    settings = TopicSettings(name="clicks", slots={"page": version % 60}, allowed_uids=(1, 2))
    topic = Topic(settings=settings, incarnation="abc", created_unix_ns=5, source="command", given={"priority": "1"})
    deletion = Deletion(topic="gone", incarnation="def", asked_unix_ns=6)
    return Catalogue(version=version, topics={"clicks": topic}, deletions=[deletion], arena_bytes=1 << 20)


class Crashing(InterposedDisk):
    """Looks at what each crash around every change would leave."""

    def __init__(self, inner: SimDisk, look: Callable[[SimDisk], None]) -> None:
        super().__init__(inner)
        self.sim = inner
        self.look = look
        self.changes = 0

    def around(self, call: Call, run: Callable[[], Result]) -> Result:
        result = run()
        if call.kind in MUTATING_KINDS:
            self.changes += 1
            for mode in CrashMode:
                for seed in SEEDS:
                    self.look(self.sim.crash(mode, seed))
        return result


def test_it_reads_back_as_it_was_written() -> None:
    assert decode_catalogue(encode_catalogue(catalogue(3))) == catalogue(3)
    disk = SimDisk()
    assert read_catalogue(disk) is None
    write_catalogue(disk, catalogue(1))
    assert read_catalogue(disk) == catalogue(1)


def test_a_crash_at_any_step_leaves_the_old_or_the_new_version_and_what_was_answered_stays() -> None:
    disk, durable = SimDisk(), 1
    write_catalogue(disk, catalogue(1))

    def look(left: SimDisk) -> None:
        found = read_catalogue(left)
        assert found is not None
        assert found.version in (durable, durable + 1)

    crashing = Crashing(disk, look)
    for version in (2, 3):
        write_catalogue(crashing, catalogue(version))
        durable = version
        for mode in CrashMode:
            found = read_catalogue(disk.crash(mode, 1))
            assert found is not None
            assert found.version == version
    assert crashing.changes >= 14


def test_damage_falls_back_to_the_version_before_and_is_refused_without_one() -> None:
    disk = SimDisk()
    write_catalogue(disk, catalogue(1))
    write_catalogue(disk, catalogue(2))
    good = encode_catalogue(catalogue(2))
    for at in range(0, len(good), 7):
        flipped = bytearray(good)
        flipped[at] ^= 4
        write_atomically(disk, CATALOGUE_NAME, bytes(flipped))
        try:
            assert read_catalogue(disk) == catalogue(1)
        except UnsupportedVersion:
            assert at < 20, "only a flip in the version may look like another one"
    alone = SimDisk()
    write_atomically(alone, CATALOGUE_NAME, good[:-5])
    with pytest.raises(InvalidFormat) as caught:
        read_catalogue(alone)
    assert "Move both files away" in str(caught.value)[:100], "`quiver status` shows the begin of a long text"


@pytest.mark.parametrize("content", [b"", b"{}", b"quiver-topics 1 00000000\n{}", b"quiver-topics x\n", b"\xff" * 50])
def test_what_is_no_catalogue_is_told(content: bytes) -> None:
    with pytest.raises(FormatError):
        decode_catalogue(content)


def test_a_newer_version_is_not_touched() -> None:
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_catalogue(encode_catalogue(catalogue(1)).replace(b"quiver-topics 1", b"quiver-topics 2", 1))
