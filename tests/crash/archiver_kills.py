"""An archiver that is killed at each of its calls to the store, before the call, in the middle of it, and behind it. A program of its own:
it forks an archiver for each kill, and may not have used anything that does not survive a fork.

    python -m tests.crash.archiver_kills RUN_DIR DATA_DIR ARCHIVE_URL
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from quiver_actors.archive.archiver import Archiver, connect_as_archiver
from quiver_actors.base.archive_status import ArchiveStatus
from quiver_actors.base.config import ArchiveSettings, NodeArchiveSettings, TopicSettings
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.support.faulty_objects import FaultyStore

BEFORE, HALF, BEHIND = "before", "half", "behind"
MOMENTS = (BEFORE, HALF, BEHIND)
NODE = "anode"
_SECONDS_MAX = 60.0
T = TypeVar("T")


class DeadlyStore(FaultyStore):
    """Kills its process at one of its calls.

    Args:
        moment: one of `MOMENTS`; in the middle of a put some of its pieces were handed over.
    """

    def __init__(self, inner: ObjectStore, at: int, moment: str) -> None:
        super().__init__(inner)
        self.deadly_at = at
        self.moment = moment

    @property
    def _is_deadly(self) -> bool:
        return len(self.calls) == self.deadly_at

    def _call(self, name: str, call: Callable[[], T]) -> T:
        is_deadly = self._is_deadly
        if is_deadly and self.moment != BEHIND:
            die()
        done = super()._call(name, call)
        if is_deadly:
            die()
        return done

    def put(self, key: str, parts: Iterable[bytes | memoryview], size_bytes: int) -> str:
        if self._is_deadly and self.moment == HALF:
            content = b"".join(parts)
            return self.inner.put(key, torn(content), size_bytes)
        return super().put(key, parts, size_bytes)


def torn(content: bytes) -> Iterable[bytes]:
    """Half of the content, and then the end of the process."""
    yield content[: len(content) // 2]
    die()


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def archive(run_dir: str, data_dir: str, store: DeadlyStore) -> None:
    """Archive all that is sealed. Returns when there is nothing left."""
    settings = {"default": TopicSettings(archive=ArchiveSettings(enabled=True))}

    def show(status: ArchiveStatus) -> None:
        if status.streams and not status.lag_segments and not any(each.oldest_unix_ns for each in status.streams):
            archiver.stop()

    archiver = Archiver(
        NODE,
        NodeArchiveSettings(url=store.url),
        PosixDisk(data_dir),
        store,
        lambda: connect_as_archiver(run_dir, 60),
        lambda: settings,
        show,
    )
    ending = threading.Timer(_SECONDS_MAX, archiver.stop)
    ending.daemon = True
    ending.start()
    archiver.run()


def one_life(run_dir: str, data_dir: str, url: str, at: int, moment: str) -> bool:
    """Let an archiver live until its deadly call. Returns whether it was killed there; False: it came to its end before."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            archive(run_dir, data_dir, DeadlyStore(open_store(url), at, moment))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, f"an archiver failed at call {at}, {moment}"
    return False


def ask_for_a_segment() -> None:
    """Have the test push a bundle and seal it: this process must stay without threads and connections."""
    print("push", flush=True)
    sys.stdin.readline()


def main(run_dir: str, data_dir: str, url: str) -> int:
    """Kill archivers at each of their calls, until one lives through; after each another one goes on in peace.

    Asks for each segment by a line, and prints how many were killed.
    """
    kills = 0
    for moment in MOMENTS:
        at = 0
        while True:
            ask_for_a_segment()
            if not one_life(run_dir, data_dir, url, at, moment):
                break
            kills, at = kills + 1, at + 1
            one_life(run_dir, data_dir, url, -1, moment)
    print(kills, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
