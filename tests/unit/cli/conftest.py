from __future__ import annotations

from tests.unit.store.inspection.conftest import healthy_store, store

__all__ = ["healthy_store", "store"]
