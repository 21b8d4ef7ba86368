"""Latency histograms as they stand on the counters page: one row each, 30 buckets, and the sum.

    word  0..28   how often it took at most `BUCKET_LIMITS_NS[word]`, and longer than the limit before
    word  29      how often it took longer than all limits
    word  30      the sum, ns

Buckets double from 32 us, so that a fdatasync of 0.1 ms and a stall of an hour are told apart by the same few words.
"""

from __future__ import annotations

import enum

_FIRST_LIMIT_NS = 32_000
BUCKET_LIMITS_NS: tuple[int, ...] = tuple(_FIRST_LIMIT_NS << power for power in range(29))
BUCKETS = len(BUCKET_LIMITS_NS) + 1
SUM_WORD = BUCKETS


class Latency(enum.StrEnum):
    """The durations that a worker measures."""

    PUSH = "push"
    """Time from the arrival of a push at the worker to its acknowledgement."""
    SYNC = "sync"
    """One fdatasync of a log file."""
    SEAL = "seal"
    """Time from the decision to seal to the readable segment."""
    DELIVER = "deliver"
    """Time from when bundles can be read, which is their sync or their seal, to the next delivery out of their segment."""


class Histogram:
    """Counts in this process's memory; its owner publishes `words`."""

    __slots__ = ("words",)

    def __init__(self) -> None:
        self.words = [0] * (BUCKETS + 1)

    def observe(self, duration_ns: int, times: int = 1) -> None:
        """Count a duration; a negative one counts as 0."""
        words = self.words
        bucket = ((duration_ns - 1) // _FIRST_LIMIT_NS).bit_length() if duration_ns > _FIRST_LIMIT_NS else 0
        words[bucket if bucket < BUCKETS else BUCKETS - 1] += times
        if duration_ns > 0:
            words[SUM_WORD] += duration_ns * times
