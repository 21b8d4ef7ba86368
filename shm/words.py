"""Live 64-bit words in shared memory, and sequence locks for what is wider than a word.

Owner: every word has exactly one writing process; anybody who maps the memory may read it at any time.

Invariants:
- A word is aligned and stored in one machine instruction, so that a reader sees the old or the new value and nothing else.
  That holds for items of `memoryview.cast("Q")`. It does not hold for `struct.pack_into`, which showed readers a transient
  zero in 9 % of reads: it is banned on shared memory.
- A sequence lock is one word: even = stable, odd = a change is under way. The writer makes it odd, changes the record, and
  makes it even again; a reader that saw the same even value before and after its copy has a consistent copy. A writer that
  died inside leaves the word odd; the next writer's change repairs it.

Order: x86-64 keeps the stores of one thread, and its loads, in order, as this needs. Other processors may swap them, so there
(and only there: it costs about 0.2 us) `fence()` is called where the order counts.
"""

from __future__ import annotations

import platform
import time
from _thread import allocate_lock
from collections.abc import Callable
from typing import TypeVar

from .errors import ShmError, WriterStuck

WORD_BYTES = 8
WORD_MAX = (1 << 64) - 1
CACHE_LINE_BYTES = 64
"""Words with different writers are kept this far apart."""

WEAKLY_ORDERED = platform.machine() not in ("x86_64", "i686")

_READS_MAX = 100_000
"""How often a record that keeps changing is read before the reader fails: for more than a second."""
_SAME_ODD_MAX = 200
"""Looks at one and the same odd sequence before its writer counts as stuck. The first few spin, the others sleep: a writer
that only lost its processor comes back well within that time (about 30 ms)."""
_SAME_ODD_SPINS = 32
_PAUSE_SECONDS = 100e-6

T = TypeVar("T")


class Words:
    """`count` live words that start `offset_bytes` into `memory`; `store` and `add` are for their one writer only.

    Args:
        memory: a view of bytes that starts at an address divisible by 8 (a mapping does); kept alive by the words.

    Attributes:
        words: the memory itself, for who can spare no call; it raises IndexError and ValueError.

    Raises:
        ShmError: the words are not aligned or not inside the memory.
    """

    __slots__ = ("words",)

    def __init__(self, memory: memoryview, offset_bytes: int, count: int) -> None:
        end_bytes = offset_bytes + count * WORD_BYTES
        if count < 1 or offset_bytes < 0 or offset_bytes % WORD_BYTES or end_bytes > memory.nbytes:
            raise ShmError(
                f"{count} words at byte {offset_bytes} are not aligned inside {memory.nbytes} bytes of memory"
            )
        self.words = memory[offset_bytes:end_bytes].cast("Q")

    def load(self, index: int) -> int:
        """Read one word. Raises ShmError outside the words or after `release`."""
        try:
            return self.words[index]
        except (IndexError, ValueError) as error:
            raise self._refusal(index, error) from None

    def store(self, index: int, value: int) -> None:
        """Write one word, 0..2**64-1. Raises ShmError for another value, outside the words, or after `release`."""
        try:
            self.words[index] = value
        except (IndexError, TypeError, ValueError) as error:
            raise self._refusal(index, error) from None

    def add(self, index: int, delta: int) -> None:
        """Add to one word: a load and a store, atomic for readers but not between writers."""
        words = self.words
        try:
            words[index] = words[index] + delta
        except (IndexError, TypeError, ValueError) as error:
            raise self._refusal(index, error) from None

    def load_many(self, index: int, count: int) -> list[int]:
        """Read `count` words from `index` on; each is whole, together they are a snapshot only under a sequence lock."""
        try:
            found: list[int] = self.words[index : index + count].tolist()
        except ValueError as error:
            raise self._refusal(index, error) from None
        return found

    def release(self) -> None:
        """Release the memory; every later use raises ShmError. Idempotent."""
        self.words.release()

    def _refusal(self, index: int, error: Exception) -> ShmError:
        return ShmError(f"shared word {index}: {error}")


class SequenceLock:
    """Writer's side of a sequence lock: `with lock:` around every change of the record that it guards."""

    __slots__ = ("_index", "_words")

    def __init__(self, words: Words, index: int) -> None:
        self._words = words
        self._index = index

    def __enter__(self) -> None:
        # SYNC: record. Odd also when a predecessor died inside and left it odd.
        self._words.store(self._index, (self._words.load(self._index) + 1) | 1)
        if WEAKLY_ORDERED:
            fence()

    def __exit__(self, *raised: object) -> None:
        if WEAKLY_ORDERED:
            fence()
        self._words.add(self._index, 1)


def read_stable(words: Words, index: int, read: Callable[[], T]) -> T:
    """Call `read` until no change of the record under the sequence lock `words[index]` fell into the call.

    `read` copies what it wants and must not trip over a half written record: decode afterwards.

    Raises:
        WriterStuck: the writer died or stopped inside a change (told after about 30 ms), or never pauses.
    """
    odd_sequence = odd_count = 0
    for _ in range(_READS_MAX):
        sequence = words.load(index)  # SYNC: record
        if sequence % 2 == 0:
            if WEAKLY_ORDERED:
                fence()
            found = read()
            if WEAKLY_ORDERED:
                fence()
            if words.load(index) == sequence:
                return found
            continue
        odd_count = odd_count + 1 if sequence == odd_sequence else 1
        odd_sequence = sequence
        if odd_count > _SAME_ODD_MAX:
            break
        if odd_count > _SAME_ODD_SPINS:
            time.sleep(_PAUSE_SECONDS)
    raise WriterStuck(f"sequence {words.load(index)} keeps changing: its writer died or stopped inside a change")


def fence() -> None:
    """Order all loads and stores before the call before all after it, on any processor.

    A release store followed by an acquire load is such an order, and taking and giving back a lock twice has them in that
    sequence. A fresh lock, so that no other thread and no fork can have left it taken.
    """
    lock = allocate_lock()
    for _ in range(2):
        lock.acquire()
        lock.release()
