"""How large the bundles of a segment are, for windows in bytes: exactly where somebody asked for it, else by their mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class BundleSizes:
    """Stored bytes of the bundles of one segment. Immutable."""

    __slots__ = ("_ends", "_mean")

    def __init__(self, mean_bytes: int, sizes_bytes: npt.NDArray[np.int64] | None = None) -> None:
        """
        Args:
            sizes_bytes: of each bundle; None: all are as large as the mean.
        """
        self._mean = mean_bytes
        self._ends = None if sizes_bytes is None else np.concatenate([[0], np.cumsum(sizes_bytes, dtype=np.int64)])

    @property
    def are_exact(self) -> bool:
        return self._ends is not None

    def of(self, indexes: Sequence[int]) -> int:
        """Of some bundles, each counted once for each time it is named."""
        if self._ends is None:
            return self._mean * len(indexes)
        if isinstance(indexes, range) and indexes.step == 1:
            return int(self._ends[indexes.stop] - self._ends[indexes.start])
        chosen = np.asarray(indexes, dtype=np.int64)
        return int((self._ends[chosen + 1] - self._ends[chosen]).sum())

    def fitting_from(self, first: int, size_bytes: int) -> int:
        """How many bundles from that one on are no larger together."""
        if self._ends is None:
            return max(0, size_bytes // max(1, self._mean))
        return max(0, int(np.searchsorted(self._ends, self._ends[first] + size_bytes, side="right")) - 1 - first)

    def fitting_up_to(self, last: int, size_bytes: int) -> int:
        """How many bundles up to and with that one are no larger together."""
        if self._ends is None:
            return max(0, size_bytes // max(1, self._mean))
        return max(0, last + 1 - int(np.searchsorted(self._ends, self._ends[last + 1] - size_bytes, side="left")))
