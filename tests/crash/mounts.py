"""File systems of the campaigns' own: small ones, and those on images. They are seen by this process and its children only, and are gone
with them, however they end. Needs root, and loop devices for images.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from quiver_actors.base.units import MIB
from tests.crash.small_store import fork, read_all

_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_UNMOUNT_ATTEMPTS = 100
_libc = ctypes.CDLL(None, use_errno=True)


class FileSystem(NamedTuple):
    """A file system that can be made on an image. `check` only looks, and ends with 0 if all is well."""

    name: str
    size_bytes: int
    make: tuple[str, ...]
    check: tuple[str, ...]
    options: str = ""


FILE_SYSTEMS = {
    "ext4": FileSystem("ext4", 256 * MIB, ("mkfs.ext4", "-q", "-F"), ("e2fsck", "-f", "-n")),
    "xfs": FileSystem("xfs", 384 * MIB, ("mkfs.xfs", "-q", "-f"), ("xfs_repair", "-n"), "nouuid"),
    "btrfs": FileSystem("btrfs", 320 * MIB, ("mkfs.btrfs", "-q", "-f"), ("btrfs", "check", "--readonly")),
}


def why_not(trial: Callable[[], object], *programs: str) -> str:
    """What keeps this process from mounting; empty if nothing does. The trial is made in a process with mounts of its own."""
    if os.geteuid() != 0:
        return "only root may mount"
    if missing := [program for program in programs if shutil.which(program) is None]:
        return f"{', '.join(missing)} not installed"

    def attempt(descriptor: int) -> int:
        try:
            isolate()
            trial()
        except OSError as error:
            os.write(descriptor, str(error).encode())
        return 0

    pid, descriptor = fork(attempt)
    said = read_all(descriptor).decode()
    _, status = os.waitpid(pid, 0)
    return said or ("" if status == 0 else f"a trial ended with status {status}")


def isolate() -> None:
    """Make the mounts of this process private from now on. Raises OSError: it may not."""
    if _libc.unshare(_CLONE_NEWNS) or _libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None):
        number = ctypes.get_errno()
        raise OSError(number, f"no mounts of our own: {os.strerror(number)}")


@contextlib.contextmanager
def mounted(source: Path | str, target: Path, *options: str) -> Iterator[Path]:
    """`mount OPTIONS SOURCE TARGET`, until the end of the block. Raises OSError: it cannot be."""
    target.mkdir(exist_ok=True)
    command("mount", *options, str(source), str(target))
    try:
        yield target
    finally:
        unmount(target)


def unmount(target: Path) -> None:
    """Unmount; tries again, as a process killed a moment ago may still have files open. Raises OSError: the file system stays in use."""
    for _ in range(_UNMOUNT_ATTEMPTS):
        with contextlib.suppress(OSError):
            command("umount", str(target))
            return
        select.select([], [], [], 0.1)
    command("umount", str(target))


@contextlib.contextmanager
def small_memory(target: Path, size_bytes: int) -> Iterator[Path]:
    with mounted("quiver", target, "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700") as made:
        yield made


@contextlib.contextmanager
def small_image(target: Path, size_bytes: int, *options: str) -> Iterator[Path]:
    """ext4, in a file beside the target, made with these options."""
    image, kind = target.with_suffix(".image"), FILE_SYSTEMS["ext4"]
    make_image(image, kind._replace(size_bytes=size_bytes, make=(*kind.make, *options)))
    try:
        with mount_image(image, target, kind) as made:
            yield made
    finally:
        image.unlink()


def mount_image(image: Path, target: Path, kind: FileSystem) -> contextlib.AbstractContextManager[Path]:
    return mounted(image, target, "-t", kind.name, "-o", ",".join(filter(None, ("loop", kind.options))))


def make_image(image: Path, kind: FileSystem) -> None:
    with image.open("wb") as file:
        file.truncate(kind.size_bytes)
    command(*kind.make, str(image))


def command(*words: str) -> str:
    """Raises OSError with what it said if it does not end with 0."""
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise OSError(f"{' '.join(words)} ended with {ran.returncode}: {(ran.stderr + ran.stdout).strip()[-1000:]}")
    return ran.stdout
