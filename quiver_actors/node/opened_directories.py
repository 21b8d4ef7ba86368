"""The directories of cores that a running node has had open: it makes none of them again.

A core's directory that is missing, or empty, when a worker is started again was moved away, unmounted, or deleted by hand. An engine on a
new one would hide that as long as the node runs, and its bundles would be in the way when the former directory comes back. So each
directory is noted in the node's run directory once it was opened, in a file without content: that survives a worker, and is gone with the
node. A topic that is deleted is forgotten before its name is free, a retired core's directory before it is moved.

    opened/<topic>@<core>

Owner: the worker of the core. The supervisor forgets the topics that it deletes; by then no worker has them open.
"""

from __future__ import annotations

import contextlib
import os

_DIRECTORY = "opened"


class OpenedDirectories:
    """The notes of one node. Each call looks at the files: workers come and go."""

    def __init__(self, run_dir: str) -> None:
        self._path = os.path.join(run_dir, _DIRECTORY)

    def note(self, topic: str, core: int) -> None:
        """Note that the directory was opened. Raises OSError: it cannot be noted now."""
        os.makedirs(self._path, mode=0o700, exist_ok=True)
        os.close(os.open(self._file(topic, core), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))

    def has(self, topic: str, core: int) -> bool:
        """Whether this node has had the directory open, and it was neither deleted nor retired since."""
        return os.path.exists(self._file(topic, core))

    def forget(self, topic: str, core: int | None = None) -> None:
        """Forget one directory, or without a core all of a topic. Raises OSError."""
        for known, number in self.all():
            if known == topic and core in (None, number):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._file(known, number))

    def all(self) -> list[tuple[str, int]]:
        """Every topic and core that is noted, sorted."""
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            return []
        found = (name.rpartition("@") for name in names)
        return sorted((topic, int(core)) for topic, _, core in found if core.isdecimal())

    def sweep(self) -> None:
        """Remove everything: another node begins, or this one ends."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._path):
                os.unlink(os.path.join(self._path, name))
            os.rmdir(self._path)

    def _file(self, topic: str, core: int) -> str:
        return os.path.join(self._path, f"{topic}@{core}")
