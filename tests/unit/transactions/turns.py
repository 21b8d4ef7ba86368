"""Threads that take turns step by step, and files in memory that a file system shows to them through such steps."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as fs

T = TypeVar("T")
DECIDERS = 3


class Killed(BaseException):
    """The process ends here."""


class Turns:
    """Lets one thread at a time take one step, chosen by a seed once all that are alive have come to their next one.

    A thread takes several steps in a row, in some seeds many, so that others sleep for as long between two of theirs.
    """

    def __init__(self, seed: int, kills: float, alive: int = DECIDERS) -> None:
        self._chance = random.Random(seed)
        self._kills = kills
        self._stays = self._chance.choice((0.5, 0.9, 0.97))
        self._last: int | None = None
        self._changed = threading.Condition()
        self._waiting: dict[int, None] = {}
        self._alive = alive
        self._next: int | None = None

    def step(self, action: Callable[[], T]) -> T:
        me = threading.get_ident()
        with self._changed:
            self._waiting[me] = None
            self._choose()
            self._changed.wait_for(lambda: self._next == me)
            self._next = None
            del self._waiting[me]
            # Before its effect, or behind it: nobody knows.
            is_killed = self._chance.random() < self._kills
            if is_killed and self._chance.random() < 0.5:
                raise Killed
            found = action()
            if is_killed:
                raise Killed
            return found

    def leave(self) -> None:
        with self._changed:
            self._alive -= 1
            self._choose()

    def _choose(self) -> None:
        if self._next is None and self._waiting and len(self._waiting) == self._alive:
            if self._last not in self._waiting or self._chance.random() >= self._stays:
                self._last = self._chance.choice(list(self._waiting))
            self._next = self._last
            self._changed.notify_all()


class SteppedStore(fs.FileSystemHandler):
    """Files in memory that appear when they are closed; a listing is read entry by entry, with others going on between."""

    def __init__(self, files: dict[str, bytes], turns: Turns) -> None:
        self.files = files
        self._turns = turns

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        found: list[fs.FileInfo] = []
        looked_at = ""
        while True:
            name = self._turns.step(partial(self._next_name, selector.base_dir, looked_at))
            if name is None:
                return found
            found.append(fs.FileInfo(name, fs.FileType.File, mtime_ns=0))
            looked_at = name

    def _next_name(self, directory: str, behind: str) -> str | None:
        names = (name for name in self.files if name.startswith(f"{directory}/") and name > behind)
        return min(names, default=None)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        content = self._turns.step(lambda: self.files.get(path))
        if content is None:
            raise FileNotFoundError(path)
        return pa.PythonFile(io.BytesIO(content), mode="r")

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        return pa.PythonFile(_Written(lambda content: self._turns.step(lambda: self.put(path, content))), mode="w")

    def put(self, path: str, content: bytes) -> None:
        assert self.files.get(path, content) == content, f"{path} is made anew with another content"
        self.files[path] = content

    def move(self, source: str, target: str) -> None:
        self._turns.step(lambda: self.put(target, self.files.pop(source)))

    def create_dir(self, path: str, recursive: bool) -> None:
        """Make nothing: there are no directories."""

    def get_type_name(self) -> str:
        return "stepped"

    def _unused(self, *arguments: object) -> Any:
        raise NotImplementedError

    get_file_info = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = copy_file = _unused
    open_input_file = open_append_stream = normalize_path = _unused


class _Written(io.BytesIO):
    def __init__(self, done: Callable[[bytes], None]) -> None:
        super().__init__()
        self._done = done

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._done(content)


def run_together(run: Callable[[int], None], count: int) -> None:
    """Call `run` with each number in a thread of its own, and wait for the end of all."""
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
