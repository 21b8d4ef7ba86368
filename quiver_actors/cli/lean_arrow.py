"""Keeps out of a process what Arrow loads wherever it is installed and no statement needs: pandas takes longer than most of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder

_NOT_NEEDED = ("pandas", "cloudpickle")


class _Leaner(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if fullname in _NOT_NEEDED:
            raise ModuleNotFoundError(f"this command does without {fullname}", name=fullname)


def load_lean_arrow() -> None:
    """Make pandas and cloudpickle count as not installed in this process, unless Arrow was loaded before."""
    if "pyarrow" not in sys.modules:
        sys.meta_path.insert(0, _Leaner())
