"""The names on a simulated disk."""

from __future__ import annotations

from collections.abc import Iterable

from tests.disks.paths import ROOT, parent_of


class Names(dict[str, object]):
    """A file or directory by each normal path that leads to it. Changed by `change` only; what a directory holds is found out once
    between two changes, as simulations ask for it far more often."""

    def __init__(self, names: Iterable[tuple[str, object]] | dict[str, object] = ()) -> None:
        super().__init__(names)
        self._inside: dict[str, list[str]] | None = None

    def change(self, changes: Iterable[tuple[str, object | None]]) -> None:
        """Give a file another name, or, with None, take a name away."""
        self._inside = None
        for path, node in changes:
            if node is None:
                self.pop(path, None)
            else:
                self[path] = node

    def inside(self, directory: str) -> list[str]:
        """Return the names that stand in a directory, sorted; the caller owns the list."""
        if self._inside is None:
            self._inside = {}
            for path in sorted(self):
                if path != ROOT:
                    self._inside.setdefault(parent_of(path), []).append(path.rpartition("/")[2])
        return [*self._inside.get(directory, ())]
