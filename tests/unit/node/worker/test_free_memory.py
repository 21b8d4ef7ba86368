"""What the allocator keeps after a peak goes back to the system."""

from __future__ import annotations

import psutil

from quiver_actors.node.worker.free_memory import TRIM_INTERVAL_NS, FreeMemory

PIECES, PIECE_BYTES = 20_000, 2_000


def anonymous_bytes() -> int:
    return int(psutil.Process().memory_full_info().uss)


def test_memory_of_a_peak_is_given_back() -> None:
    memory = FreeMemory()
    memory.sweep(0)
    pieces = [bytes(PIECE_BYTES) for _ in range(PIECES)]
    kept = pieces[::100]  # what stays keeps the heap from shrinking by itself
    at_peak = anonymous_bytes()
    del pieces
    assert not memory.sweep(TRIM_INTERVAL_NS - 1)
    assert memory.sweep(TRIM_INTERVAL_NS)
    assert anonymous_bytes() < at_peak - PIECES * PIECE_BYTES // 2
    assert len(kept) == PIECES // 100
