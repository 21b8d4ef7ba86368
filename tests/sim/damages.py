"""What a disk does to a directory: files that are missing, cut off, empty, full of rubbish, or of which a bit has flipped."""

from __future__ import annotations

from collections.abc import Callable

from tests.disks.simulated import SimDisk
from tests.sim.oracle import DIRECTORY


def put_file(disk: SimDisk, path: str, content: bytes) -> None:
    """A durable file."""
    disk.make_directory(path.rpartition("/")[0])
    file = disk.create(path)
    file.write([content], 0)
    file.fsync()
    file.close()
    disk.sync_directory(path.rpartition("/")[0])


def paths(disk: SimDisk, part: str) -> list[str]:
    return [path for path in disk.contents() if part in path]


def rewrite(part: str, change: Callable[[bytes], bytes], which: int = 0) -> Callable[[SimDisk], None]:
    """A damage: the content of one file becomes what `change` makes of it."""

    def damage(disk: SimDisk) -> None:
        path = paths(disk, part)[which]
        content = change(disk.contents()[path])
        disk.unlink(path)
        put_file(disk, path, content)

    return damage


def remove(part: str, which: int = 0) -> Callable[[SimDisk], None]:
    def damage(disk: SimDisk) -> None:
        path = paths(disk, part)[which]
        disk.unlink(path)
        disk.sync_directory(path.rpartition("/")[0])

    return damage


def add(path: str, content: bytes) -> Callable[[SimDisk], None]:
    return lambda disk: put_file(disk, f"{DIRECTORY}/{path}", content)


def add_all(*paths: str) -> Callable[[SimDisk], None]:
    def damage(disk: SimDisk) -> None:
        for path in paths:
            add(path, b"left over")(disk)

    return damage


def flip(offset: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        at = offset % len(content)
        return content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]

    return change


def cut(share: float) -> Callable[[bytes], bytes]:
    return lambda content: content[: round(len(content) * share)]


def each(*damages: Callable[[SimDisk], None]) -> Callable[[SimDisk], None]:
    def damage(disk: SimDisk) -> None:
        for one in damages:
            one(disk)

    return damage


ZERO: Callable[[bytes], bytes] = lambda content: bytes(len(content))  # noqa: E731

DAMAGES: dict[str, Callable[[SimDisk], None]] = {
    "nothing": lambda disk: None,
    "core missing": remove("quiver.core"),
    "core flipped": rewrite("quiver.core", flip(20)),
    "core cut": rewrite("quiver.core", cut(0.5)),
    "core zero": rewrite("quiver.core", ZERO),
    "cursor missing": remove("cursor"),
    "cursor flipped": rewrite("cursor", flip(14)),
    "cursor empty": rewrite("cursor", cut(0)),
    "progress flipped": rewrite("quiver.sub.", flip(16)),
    "progress cut": rewrite("quiver.sub.", cut(0.7)),
    "progress empty": rewrite("quiver.sub.", cut(0)),
    "journal of progress flipped": rewrite("quiver.progress", flip(50)),
    "journal of progress cut": rewrite("quiver.progress", cut(0.7)),
    "journal of progress empty": rewrite("quiver.progress", cut(0)),
    "journal of progress that is whole": lambda disk: None,
    "log header flipped": rewrite("/quiver.wal", flip(75)),
    "log header zero": rewrite("/quiver.wal", lambda content: bytes(121) + content[121:]),
    "log entry flipped": rewrite("/quiver.wal", flip(121 + 40)),
    "log entry length flipped": rewrite("/quiver.wal", flip(121)),
    "log entry length huge": rewrite("/quiver.wal", lambda content: content[:121] + b"\xff" * 4 + content[125:]),
    "segment entry flipped": rewrite(".qseg", flip(300), -1),
    "segment header flipped": rewrite(".qseg", flip(75), -1),
    "segment manifest flipped": rewrite(".qseg", flip(-300), -1),
    "segment trailer flipped": rewrite(".qseg", flip(-8), -1),
    "segment footer flipped": rewrite(".qseg", flip(-40), -1),
    "segment cut": rewrite(".qseg", cut(0.6), -1),
    "segment empty": rewrite(".qseg", cut(0), -1),
    "segment zero": rewrite(".qseg", ZERO, -1),
    "segment missing": remove(".qseg", -1),
    "rotated log of nothing": add("wal/quiver.wal.900", bytes(5000)),
    "rotated log of rubbish": add("wal/quiver.wal.901", b"rubbish!" * 700),
    "empty rotated log": add("wal/quiver.wal.902", b""),
    "core, cursor and segment flipped": each(
        rewrite("quiver.core", flip(20)), rewrite("cursor", flip(14)), rewrite(".qseg", flip(300), -1)
    ),
    "temporaries": add_all(
        "quiver.core.tmp", "quiver.sub.ann.tmp", "wal/quiver.wal.cursor.tmp", "segments/0000000000000099.qseg.tmp"
    ),
    "strangers": add_all("notes.txt", "wal/notes.txt", "segments/notes.txt", "quiver.sub."),
}

COMPACTED: dict[str, Callable[[SimDisk], None]] = {
    "compacted segment batch flipped": rewrite(".qseg", lambda content: flip(len(content) // 3)(content)),
    "compacted segment of nothing": rewrite(".qseg", ZERO),
}
WITHOUT_A_TRACE = frozenset(["segment empty", "segment zero", "segment missing"])
