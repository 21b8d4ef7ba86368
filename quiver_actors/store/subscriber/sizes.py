"""The sizes of a segment's bundles, for windows in bytes: exact where a consumer needs them, else their mean."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Sizes(Protocol):
    """Stored bytes of the bundles of one segment."""

    @property
    def are_exact(self) -> bool:
        """Whether the size of each bundle is known; otherwise each counts with the mean of the segment."""

    def of(self, indexes: Sequence[int]) -> int:
        """Stored bytes of these bundles together; a bundle that is named twice counts twice."""

    def fitting_from(self, first: int, size_bytes: int) -> int:
        """How many bundles from `first` on have `size_bytes` together at the most."""

    def fitting_up_to(self, last: int, size_bytes: int) -> int:
        """How many bundles up to and including `last` have `size_bytes` together at the most."""


class OpenSizes:
    """Stored bytes of the bundles of a segment that is not sealed: exact, and growing with it. One object serves all subscribers.

    Attributes:
        ends: for each bundle, in order, how many bytes it and those before it take; begins with 0.
    """

    __slots__ = ("ends",)

    are_exact = True

    def __init__(self) -> None:
        self.ends = array("Q", (0,))

    @property
    def bundle_count(self) -> int:
        """How many bundles of the segment can be read."""
        return len(self.ends) - 1

    def of(self, indexes: Sequence[int]) -> int:
        """See `Sizes`."""
        ends = self.ends
        if isinstance(indexes, range) and indexes.step == 1:
            return ends[indexes.stop] - ends[indexes.start]
        return sum(ends[index + 1] - ends[index] for index in indexes)

    def fitting_from(self, first: int, size_bytes: int) -> int:
        """See `Sizes`."""
        return max(0, bisect_right(self.ends, self.ends[first] + size_bytes) - 1 - first)

    def fitting_up_to(self, last: int, size_bytes: int) -> int:
        """See `Sizes`."""
        return max(0, last + 1 - bisect_left(self.ends, max(0, self.ends[last + 1] - size_bytes)))


class BundleSizes:
    """Stored bytes of the bundles of one sealed segment. Immutable."""

    __slots__ = ("_ends", "_mean")

    def __init__(self, mean_bytes: int, sizes_bytes: npt.NDArray[np.int64] | None = None) -> None:
        """
        Args:
            sizes_bytes: stored bytes of each bundle; None: all are as large as the mean.
        """
        self._mean = mean_bytes
        self._ends = None if sizes_bytes is None else np.concatenate([[0], np.cumsum(sizes_bytes, dtype=np.int64)])

    @property
    def are_exact(self) -> bool:
        """Whether the size of each bundle is known; otherwise each counts with the mean of the segment."""
        return self._ends is not None

    def of(self, indexes: Sequence[int]) -> int:
        """Stored bytes of these bundles together; a bundle that is named twice counts twice."""
        if self._ends is None:
            return self._mean * len(indexes)
        if isinstance(indexes, range) and indexes.step == 1:
            return int(self._ends[indexes.stop] - self._ends[indexes.start])
        chosen = np.asarray(indexes, dtype=np.int64)
        return int((self._ends[chosen + 1] - self._ends[chosen]).sum())

    def fitting_from(self, first: int, size_bytes: int) -> int:
        """How many bundles from `first` on have `size_bytes` together at the most."""
        if self._ends is None:
            return max(0, size_bytes // max(1, self._mean))
        return max(0, int(np.searchsorted(self._ends, self._ends[first] + size_bytes, side="right")) - 1 - first)

    def fitting_up_to(self, last: int, size_bytes: int) -> int:
        """How many bundles up to and including `last` have `size_bytes` together at the most."""
        if self._ends is None:
            return max(0, size_bytes // max(1, self._mean))
        return max(0, last + 1 - int(np.searchsorted(self._ends, self._ends[last + 1] - size_bytes, side="left")))
