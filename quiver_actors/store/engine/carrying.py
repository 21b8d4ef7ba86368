"""Takes over what other cores of the topic have stored of this core's producers, once in each generation. See `base.homes`.

In a generation a producer stores only on the core that is its place. So what the directories of other cores hold of it stands still
from the moment that each of them was recovered in that generation, and their files `quiver.producers` tell all of it:

| directory              | its file is complete                                                                       |
|------------------------|--------------------------------------------------------------------------------------------|
| of a worker, or adopted | once it says `recovered_in` this generation: a start seals every log and saves its keys first |
| retired                | always: it was closed with nothing left in logs                                            |

As long as one is not, the producers of this core wait. The job reads and then replaces one file, so a crash in its middle leaves either
the state before it, from which the next one begins again, or all of it.
"""

from __future__ import annotations

import errno
import logging

from quiver_actors.base.core_dirs import RETIRED_NAME, core_of
from quiver_actors.base.homes import ProducerHomes
from quiver_actors.errors import DiskError, FormatError, QuiverError
from quiver_actors.store.disk.protocol import Disk, read_whole, write_atomically
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.staged.carried_keys import carry
from quiver_actors.store.staged.keys import Windows, decode_windows
from quiver_actors.supervisor.log import log_event

_FILE_BYTES_MAX = 64 << 20


class CarryJob(Job):
    """Read what other cores hold, and save it here. `windows`: what is remembered from then on, None where `problem` says why not yet."""

    writes_anew = True

    def __init__(self, disk: Disk, paths: EnginePaths, core: int, homes: ProducerHomes, own: bytes) -> None:
        """
        Args:
            own: the content of this core's file, which has everything that is known here.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._core = core
        self._homes = homes
        self._own = own
        self._topic = paths.root.rpartition("/")[0]
        self.windows: Windows | None = None
        self.problem = ""

    def work(self) -> None:
        """Read the producers' windows from the directories of all other cores, and merge them into those of this core."""
        try:
            others = self._read_others()
        except (DiskError, FormatError) as error:
            self.problem = str(error)
            return
        if self.problem:
            return
        own, homes, core = decode_windows(self._own), self._homes, self._core
        windows = carry(own, others, lambda producer: homes.is_home(producer, core), homes.generation)
        write_atomically(self._disk, self._paths.producers, windows.encode())
        self._disk.sync_directory(self._paths.root)
        self.windows = windows

    def _read_others(self) -> list[tuple[int, Windows]]:
        retired_path = f"{self._topic}/{RETIRED_NAME}"
        # Listed before and after the others: a directory that moves between the two places meanwhile is met in one of them.
        retired = self._cores_in(retired_path)
        present = self._cores_in(self._topic) - {self._core}
        retired |= self._cores_in(retired_path)
        found = [(core, self._read(f"{self._topic}/core_{core}", is_retired=False)) for core in sorted(present)]
        for core in sorted(retired - present - {self._core}):
            found.append((core, self._read(f"{retired_path}/core_{core}", is_retired=True)))
        return found

    def _cores_in(self, path: str) -> set[int]:
        return {core for name in self._disk.list_directory(path) if (core := core_of(name)) is not None}

    def _read(self, directory: str, *, is_retired: bool) -> Windows:
        path = EnginePaths(directory).producers
        try:
            windows = decode_windows(read_whole(self._disk, path, _FILE_BYTES_MAX))
        except DiskError as error:
            if error.errno != errno.ENOENT:
                raise
            windows = Windows()
            if is_retired and not self._disk.exists(directory):
                self.problem = f"{directory} is being taken up again"
        except FormatError as error:
            if not is_retired:
                raise
            # Nobody opens it any more, and nothing but that file tells what its segments held, which are deleted.
            self._log_forgotten(path, error)
            windows = Windows()
        if not is_retired and windows.recovered_in != self._homes.generation:
            self.problem = f"{directory} was not recovered since the node has {self._homes.cores} workers"
        return windows

    def _log_forgotten(self, path: str, error: QuiverError) -> None:
        fields: dict[str, object] = {
            "path": path,
            "reason": f"{error}; what it says that producers have stored is forgotten",
        }
        log_event("producers.forgotten", fields, logging.ERROR)
