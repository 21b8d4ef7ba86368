from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.store.inspection.stores import copy_store, write_store


@pytest.fixture(scope="session")
def healthy_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed: `store` is a copy."""
    root = tmp_path_factory.mktemp("inspection") / "data"
    write_store(root)
    return root


@pytest.fixture
def store(healthy_store: Path, tmp_path: Path) -> Path:
    return copy_store(healthy_store, tmp_path / "data")
