"""The record of a decision log in an object store: how its decisions are made, settled once and for all processes.

    _log.json    {"v": 1, "made": "preparing" | "created" | "claimed"}

`created`: whoever creates the decision's object has decided; the store lets one only. `claimed`: the processes agree by claims (`claims`),
which needs nothing of the store but listings. The two must never meet in one log: each would decide alone.

Why they do not. Who knows conditional puts (A) puts `preparing` there, then looks for claims, then replaces it by `created` if there is
none, else by `claimed`. Who does not (B) makes its claim first and looks for the record then; it goes on only if there is none, or
`claimed`. If B finds no record, A looks for claims later than B has made one, finds it, and uses claims as well. A log that was begun
before there were records has claims, and so stays with them.
"""

from __future__ import annotations

import msgspec

from quiver_actors.errors import InvalidFormat
from quiver_actors.store.objects.errors import ArchiveRefused
from quiver_actors.store.objects.object_store import ObjectChanged, ObjectExists, ObjectStore

RECORD = "_log.json"
"""No decision has this name: those have the number of an epoch in it."""
CLAIMS = "_claims"
"""Directory of the claims to decisions, below the log."""
PREPARING = "preparing"
CREATED = "created"
CLAIMED = "claimed"


class _Record(msgspec.Struct, frozen=True):
    made: str
    v: int = 1


def how_made(content: bytes) -> str:
    """Return what a record says. Raises InvalidFormat: nothing that this program knows, so that it must decide nothing there."""
    try:
        found = msgspec.json.decode(content, type=_Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFormat(f"{RECORD} cannot be read: {error}; restore it") from error
    if found.v != 1 or found.made not in (PREPARING, CREATED, CLAIMED):
        raise InvalidFormat(f"{RECORD} says {found.made!r} (version {found.v}): use the release that wrote it")
    return found.made


def settle(store: ObjectStore) -> str:
    """Return how decisions are made in the log of this store: `CREATED` or `CLAIMED`; the first to ask settles it.

    Raises:
        ArchiveRefused: the store does not keep the conditions of puts, and nobody has said that claims are to be used.
        ArchiveUnavailable: not settled, or not known to be; the call may be repeated.
        InvalidFormat: see `how_made`.
    """
    while True:
        found = store.get(RECORD)
        if found is None:
            _begin(store)
            continue
        made = how_made(found.content)
        if made == CREATED:
            _prove_creates(store)
        if made != PREPARING:
            return made
        settled = CLAIMED if any(True for _ in store.objects(CLAIMS)) else CREATED
        try:
            store.replace(RECORD, _encoded(settled), found.version)
        except ObjectChanged:
            continue  # somebody else was faster, and may have settled it otherwise


def _begin(store: ObjectStore) -> None:
    try:
        store.create(RECORD, _encoded(PREPARING))
    except ObjectExists:
        return


def _prove_creates(store: ObjectStore) -> None:
    """Raise ArchiveRefused where the store creates what is there."""
    for _ in range(2):  # once more, if somebody has deleted the record meanwhile
        try:
            store.create(RECORD, _encoded(CREATED))
        except ObjectExists:
            return
    raise ArchiveRefused(
        f"{store.url} does not keep the condition If-None-Match of puts: two processes could decide differently. Use another place for "
        f'decisions; or, to have them agree by claims there, put {RECORD} with the content {{"made": "{CLAIMED}"}} there'
    )


def _encoded(made: str) -> bytes:
    return msgspec.json.encode(_Record(made))
