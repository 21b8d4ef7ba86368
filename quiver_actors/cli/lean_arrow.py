"""Loads `pyarrow.dataset` without pandas, which it loads wherever it is installed: that takes longer than most statements."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this command does without pandas", name=fullname)


def load_without_pandas() -> None:
    """Load `pyarrow.dataset`. Arrow converts nothing from or to pandas in this process from then on, unless it was loaded before."""
    if "pyarrow" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("pyarrow.dataset")
    finally:
        sys.meta_path.remove(finder)
