"""Starting to write a file's pages before a sync asks for them: sync_file_range(2), which Python has no call for."""

from __future__ import annotations

import ctypes

_SYNC_FILE_RANGE_WRITE = 2

_start = ctypes.CDLL(None, use_errno=True).sync_file_range
_start.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def start_writeback(descriptor: int, offset: int, length: int) -> None:
    """Let the disk begin with what was written to `[offset, offset + length)` of the file.

    Only a hint, which a file system may ignore: nothing is durable by it. It does not wait for the pages and, without the flags that wait,
    takes no error away from the next sync: a page that cannot be written fails that one, as if nobody had begun with it.
    """
    _start(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE)
