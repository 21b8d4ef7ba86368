"""The power is cut under a real node again and again: crash images of a real file system, each opened by the next node.

    python -m tests.crash.images [IMAGES] [SEED] [ext4|xfs|btrfs ...]          ends with two lines of JSON: all, and what adds up

The node's data lie on a file system on a `recorded_disk`. While producers push and a subscriber reads, images are taken at random writes;
of each it is known what had been acknowledged before it was asked for. Then each is mounted, which replays the journal, checked, and a
node is started on it. Demanded, beside what the `Book` demands: a subscriber that had read nothing gets everything that was acknowledged
before the image, one that had read along gets the rest and nothing whose acknowledgement was durable, and new bundles go in.

Needs root, loop devices, FUSE and the file system's programs; where something is missing that is said, and counted as no image.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.crash.book import Book
from tests.crash.bundles import TOPIC
from tests.crash.campaign import guarded
from tests.crash.live_node import LiveNode
from tests.crash.mounts import FILE_SYSTEMS, FileSystem, command, isolate, make_image, mount_image, why_not
from tests.crash.recorded_disk import RecordedDisk, recorded_disk
from tests.crash.showing import numbers_given, show

IMAGES_PER_LIFE = 4
READER, SLEEPER = "oracle", "sleeper"
_WRITES_AHEAD_MAX = 40
CONFIG = f"""
[retention]
min_free = "1MiB"

[topics.{TOPIC}.segment]
target_size = "1MiB"
max_open_duration = "200ms"
"""


@dataclass
class ImageTally:
    """Counted while it was done."""

    images: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Number of images, by file system."""
    skipped: dict[str, str] = field(default_factory=dict)
    """File systems that cannot be used here, and why."""
    acknowledged: int = 0
    """Before the images, added up."""
    delivered: int = 0
    pages_lost: int = 0
    """Pages that were written and not in the image."""
    writes: int = 0
    flushes: int = 0
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        return {
            "power_cut_images": sum(self.images.values()),
            "power_cut_pages_lost": self.pages_lost,
            "node_acknowledged": self.acknowledged,
            "open_failures": len(self.failures),
        }


@dataclass
class Image:
    path: Path
    before: Book
    """The book right before the image was asked for."""
    after: Book
    """The book right after the image was made."""


class PowerCuts:
    """One file system. See the module."""

    def __init__(self, kind: FileSystem, seed: int, tally: ImageTally) -> None:
        self._kind = kind
        self._random = Random(f"images {kind.name} {seed}")
        self._tally = tally

    def life(self, images: int, base: Path) -> None:
        """A new file system, a node on it, so many images, and a node on each."""
        empty = base / "empty"
        make_image(empty, self._kind)
        with recorded_disk(empty) as disk:
            empty.unlink()
            with mount_image(disk.path, base / "live", self._kind) as live:
                taken = self._take(disk, live, images, base)
        self._tally.pages_lost += disk.pages_lost
        self._tally.writes += disk.writes
        self._tally.flushes += disk.flushes
        for image in taken:
            self._check(image, base)
            image.path.unlink()

    def _take(self, disk: RecordedDisk, live: Path, images: int, base: Path) -> list[Image]:
        taken = []
        with LiveNode(
            config=CONFIG,
            data=live / "data",
            producers=2,
            subscribers=(READER,),
            sleepers=(SLEEPER,),
            pause_seconds=0.01,
        ) as node:
            for number in range(images):
                node.progress(self._random.randrange(1, 120))
                path, before = base / f"image-{number}", node.book.copy()
                disk.crash_image(path, self._random.randrange(_WRITES_AHEAD_MAX), self._random.getrandbits(32))
                node.check()
                taken.append(Image(path, before, node.book.copy()))
        return taken

    def _check(self, image: Image, base: Path) -> None:
        target = base / "crashed"
        with mount_image(image.path, target, self._kind):
            pass
        command(*self._kind.check, str(image.path))
        with (
            mount_image(image.path, target, self._kind),
            LiveNode(
                config=CONFIG,
                data=target / "data",
                producers=2,
                subscribers=(READER, SLEEPER),
                copied_between=(image.before, image.after),
            ) as node,
        ):
            node.progress(1)
            node.settle()
            self._tally.failures += node.book.told()[:5]
            self._tally.delivered += node.book.counts["delivered"]
        self._tally.acknowledged += len(image.before.acknowledged)
        self._tally.images[self._kind.name] += 1


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="quiver-images-") as made:
        yield Path(made)


def _try(kind: FileSystem) -> None:
    """Raises OSError: this machine has no such file system, no FUSE, or no loop devices for us."""
    with directory() as base:
        make_image(base / "image", kind)
        with recorded_disk(base / "image") as disk, mount_image(disk.path, base / "mounted", kind):
            pass


def run(images: int, seed: int, names: list[str]) -> ImageTally:
    """Take that many images, spread over the file systems that can be used here."""
    tally = ImageTally()
    for name in names:
        kind = FILE_SYSTEMS[name]
        if reason := why_not(functools.partial(_try, kind), kind.make[0], kind.check[0]):
            tally.skipped[name] = reason
    usable = [name for name in names if name not in tally.skipped]
    if usable:
        isolate()
    for place, name in enumerate(usable):
        cuts, left = PowerCuts(FILE_SYSTEMS[name], seed, tally), -(-(images - place) // len(usable))
        while left > 0 and not tally.failures:
            with guarded(tally.failures.append, f"{name}, seed {seed}"), directory() as base:
                cuts.life(min(left, IMAGES_PER_LIFE), base)
            left -= IMAGES_PER_LIFE
    return tally


def main() -> int:
    images, seed = numbers_given(4, 1)
    started = time.monotonic()
    return show(started, run(images, seed, sys.argv[3:] or list(FILE_SYSTEMS)))


if __name__ == "__main__":
    sys.exit(main())
