"""Two ways to let the k-th system call of a kind fail in a forked child: strace, and a small library that is loaded before libc.

strace needs the right to trace; the library needs a C compiler when the test runs. Whichever is there is used, strace first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.crash.small_store import fork, read_all

KINDS = (
    "pwritev",
    "pwritev2",
    "pwrite64",
    "fdatasync",
    "fsync",
    "fallocate",
    "renameat",
    "unlinkat",
    "openat",
    "ftruncate",
    "mkdirat",
)
"""Kinds of calls in the order of the enumeration in fault_shim.c."""
SHIM_VARIABLE = "QUIVER_FAULT_SHIM"
_SHIM_SOURCE = Path(__file__).with_name("fault_shim.c")
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)
_ATTACH_SECONDS = 60.0

Life = Callable[[int], int]
"""Takes the descriptor to report to, returns the exit code."""


@dataclass(frozen=True)
class Ran:
    """The end of one child process."""

    status: int
    heard: bytes
    hits: int
    """How often the fault struck: 0 or 1."""
    counts: Counter[str]
    """Calls of each kind that the child made."""


class Injector(Protocol):
    name: str

    def run(self, life: Life, kind: str, nth: int, errno_name: str) -> Ran:
        """Live one life in a child in which that call fails; `nth` 0: none does."""


class StraceInjector:
    """`strace -e inject` on a child that waits until it is attached."""

    name = "strace"

    def __init__(self) -> None:
        self._output = tempfile.NamedTemporaryFile(prefix="quiver-strace-")  # noqa: SIM115 - lives as long as this

    def run(self, life: Life, kind: str, nth: int, errno_name: str) -> Ran:
        go_read, go_write = os.pipe()

        def wait_and_live(descriptor: int) -> int:
            os.close(go_write)
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
            os.read(go_read, 1)
            return life(descriptor)

        pid, descriptor = fork(wait_and_live)
        os.close(go_read)
        try:
            tracer = self._attach(pid, kind, nth, errno_name)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        finally:
            os.write(go_write, b"!")
            os.close(go_write)
        heard = read_all(descriptor)
        _, status = os.waitpid(pid, 0)
        tracer.communicate()
        lines = Path(self._output.name).read_text(errors="replace").splitlines()
        counts = Counter(found.group(1) for line in lines if (found := re.match(r"(?:\d+ +)?(\w+)\(", line)))
        return Ran(status, heard, sum("(INJECTED)" in line for line in lines), counts)

    def _attach(self, pid: int, kind: str, nth: int, errno_name: str) -> subprocess.Popen[bytes]:
        command = ["strace", "-o", self._output.name, "-s", "0", "-e", f"trace={','.join(KINDS)}", "-e", "signal=none"]
        if nth:
            command += ["-e", f"inject={kind}:error={errno_name}:when={nth}"]
        tracer = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE)
        assert tracer.stderr is not None
        ready, _, _ = select.select([tracer.stderr], [], [], _ATTACH_SECONDS)
        said = os.read(tracer.stderr.fileno(), 4096).decode() if ready else "it says nothing"
        if "attached" not in said:
            tracer.kill()
            tracer.communicate()
            raise OSError(f"strace cannot attach: {said.strip()}")
        return tracer


class ShimInjector:
    """The library fault_shim.c, which this process must have been started with (`shim_environment`)."""

    name = "preloaded library"

    def __init__(self) -> None:
        self._shim = ctypes.CDLL(os.environ[SHIM_VARIABLE])
        self._shim.quiver_fault_count.restype = self._shim.quiver_fault_hits.restype = ctypes.c_long
        self._shim.quiver_fault_arm.argtypes = (ctypes.c_int, ctypes.c_long, ctypes.c_int)

    def run(self, life: Life, kind: str, nth: int, errno_name: str) -> Ran:
        counts_read, counts_write = os.pipe()

        def armed(descriptor: int) -> int:
            self._shim.quiver_fault_arm(KINDS.index(kind) if nth else -1, nth, getattr(errno, errno_name, 0))
            code = life(descriptor)
            found = [self._shim.quiver_fault_hits(), *map(self._shim.quiver_fault_count, range(len(KINDS)))]
            os.write(counts_write, " ".join(map(str, found)).encode())
            return code

        pid, descriptor = fork(armed)
        os.close(counts_write)
        heard = read_all(descriptor)
        _, status = os.waitpid(pid, 0)
        hits, *counts = map(int, read_all(counts_read).split() or [b"0"])
        return Ran(status, heard, hits, Counter(dict(zip(KINDS, counts, strict=False))))


def choose() -> Injector:
    """Return the first injector that this process can use.

    Raises:
        OSError: neither can be used; says why.
    """
    if SHIM_VARIABLE in os.environ:
        return ShimInjector()
    if shutil.which("strace") is None:
        raise OSError("strace is not installed")
    injector = StraceInjector()
    injector.run(lambda descriptor: 0, KINDS[0], 0, "EIO")
    return injector


@contextlib.contextmanager
def shim_environment() -> Iterator[dict[str, str]]:
    """The environment that a process must be started with to use the library, built now.

    Raises:
        OSError: there is no C compiler, or it cannot build it; says why.
    """
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise OSError("no C compiler is installed")
    with tempfile.TemporaryDirectory(prefix="quiver-shim-") as directory:
        library = os.path.join(directory, "shim.so")
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, str(_SHIM_SOURCE), "-ldl"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise OSError(f"{compiler} cannot build {_SHIM_SOURCE.name}: {built.stderr[-300:]}")
        yield {**os.environ, "LD_PRELOAD": library, SHIM_VARIABLE: library}
