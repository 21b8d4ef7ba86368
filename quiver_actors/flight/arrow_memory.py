"""A bound on what Arrow may allocate in a process: set before pyarrow is loaded, proven right after.

Flight decodes what a caller sends before a handler sees it, and pyarrow lets nobody look first. What a compressed message may become is
bounded where Arrow allocates it: mimalloc, the allocator in pyarrow, can be told by its environment to hand out one reserved span and no
more.
"""

from __future__ import annotations

import logging
import os
import sys

from quiver_actors.base.units import GIB, MIB, format_size
from quiver_actors.errors import ConfigError
from quiver_actors.supervisor.log import log_event

_MEMORY_SHARE = 4
_PROBE_BYTES = MIB


def default_bytes() -> int:
    """Return the bound where none is set: a quarter of the machine's memory, at least 1 GiB."""
    return max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MEMORY_SHARE, GIB)


def bound_arrow_memory(limit_bytes: int) -> bool:
    """Bound what Arrow may hold in this process from now on; beyond it calls raise `pyarrow.ArrowMemoryError`.

    Returns:
        Whether the bound holds: it does not where pyarrow is built without mimalloc, or was loaded before. That is logged.

    Raises:
        ConfigError: the machine does not give so much address space.
    """
    loaded = "pyarrow" in sys.modules
    options = {
        "ARROW_DEFAULT_MEMORY_POOL": "mimalloc",
        "MIMALLOC_RESERVE_OS_MEMORY": f"{max(limit_bytes, MIB) // 1024}KiB",
        "MIMALLOC_DISALLOW_OS_ALLOC": "1",
    }
    before = {name: os.environ.get(name) for name in options}
    os.environ.update(options)
    import pyarrow as pa

    pool = pa.default_memory_pool()  # chosen now, by what the environment says
    # Other libraries with that allocator, and programs that are started, are not meant.
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    try:
        pa.allocate_buffer(_PROBE_BYTES)
    except pa.ArrowMemoryError as error:
        raise ConfigError(
            f"serve.memory: this machine does not give {format_size(limit_bytes)} of address space: set less"
        ) from error
    try:
        pa.allocate_buffer(limit_bytes + _PROBE_BYTES)
    except pa.ArrowMemoryError:
        if not loaded:
            return True
    log_event("serve.memory_unbounded", {"allocator": pool.backend_name}, logging.WARNING)
    return False
