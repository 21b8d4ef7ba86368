"""Decision files in an object store with conditional puts: whoever creates the object has decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiver_actors.store.objects.object_store import ObjectExists
from quiver_actors.store.objects.patience import PATIENCE, Patience, patiently
from quiver_actors.transactions.decision_files import DecisionFiles
from quiver_actors.transactions.log_record import CLAIMED, CLAIMS, settle

if TYPE_CHECKING:
    from quiver_actors.store.objects.object_store import ObjectStore


class StoreFiles:
    """A prefix of an object store. The store lets one of several creators succeed; a log that was begun with claims goes on with them.

    Methods raise ArchiveUnavailable when the store has not answered for a while, and ArchiveRefused.
    """

    def __init__(
        self,
        location: str,
        *,
        store: ObjectStore | None = None,
        by_claims: DecisionFiles | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        """
        Args:
            location: the URL of the prefix.
            store: for simulations and tests; None: that of the location, opened when it is first needed. It is borrowed.
            by_claims: the same files, for a log whose decisions are claimed; None: those of the location.
        """
        self._location = location
        self._store = store
        self._by_claims = by_claims
        self._patience = patience
        self._made = ""

    def read(self, name: str) -> bytes | None:
        """Return the content of a decision's object, or None if there is none."""
        store = self._opened()
        found = patiently(lambda: store.get(name), self._patience)
        return None if found is None else found.content

    def create(self, name: str, content: bytes) -> None:
        """Create the object unless it exists. An answer that was lost does no harm: the next try finds what is there."""
        store = self._opened()
        self._made = self._made or patiently(lambda: settle(store), self._patience)
        if self._made == CLAIMED:
            self._claimed().create(name, content)
        else:
            patiently(lambda: _create(store, name, content), self._patience)

    def remove(self, name: str) -> None:
        """Delete the object of a decision, and before it the claims that led to it."""
        store = self._opened()
        patiently(lambda: _remove(store, name), self._patience)

    def _opened(self) -> ObjectStore:
        if self._store is None:
            from quiver_actors.store.objects.opening import open_store

            self._store = open_store(self._location, name="the decision log")
        return self._store

    def _claimed(self) -> DecisionFiles:
        if self._by_claims is None:
            from quiver_actors.transactions.arrow_files import ArrowFiles

            self._by_claims = ArrowFiles(self._location)
        return self._by_claims


def _create(store: ObjectStore, name: str, content: bytes) -> None:
    try:
        store.create(name, content)
    except ObjectExists:
        return  # somebody else's, or this very one, whose answer was lost: whoever reads it acts on what it says


def _remove(store: ObjectStore, name: str) -> None:
    for claim in list(store.objects(f"{CLAIMS}/{name}")):
        store.delete(claim.key)
    store.delete(name)
