"""A file system of segments as Arrow IPC files, for readers that know files only. A file is made when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import fs


def segment_file_system(table_of: Callable[[str], pa.Table] | None, paths: Sequence[str]) -> fs.FileSystem:
    """The file system of these paths.

    Args:
        table_of: makes what the file of a path holds; None: no file can be opened.
    """
    return fs.PyFileSystem(_Segments(table_of, paths))


class _Segments(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, table_of: Callable[[str], pa.Table] | None, paths: Sequence[str]) -> None:
        self._table_of = table_of
        self._paths = frozenset(paths)

    def get_type_name(self) -> str:
        return "quiver"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        kinds = {True: fs.FileType.File, False: fs.FileType.NotFound}
        return [fs.FileInfo(path, kinds[path in self._paths]) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return self.get_file_info(sorted(self._paths))

    def open_input_file(self, path: str) -> pa.NativeFile:
        if self._table_of is None or path not in self._paths:
            raise FileNotFoundError(path)
        table, sink = self._table_of(path), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return pa.BufferReader(sink.getvalue())

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise PermissionError("a dataset of a topic cannot be written to: push bundles to the topic")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse
