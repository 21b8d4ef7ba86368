"""Names of objects that wait for their deletion. Readers of a former manifest have an hour, so there may be tens of thousands.

The head is read and replaced with each commit, so it names few of them: the others lie in lists, objects of their own that the head
names instead. A list is deleted after what it names. It names only keys that never come back: parts of the manifest, states, and
segments with their checksums. A pack or a part of a stage may be uploaded again under its key, so the head itself names these.

A program that knows no lists deletes them as they are; then the objects that they name stay in the store, and cost their room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from quiver_actors.archive.keys import (
    PARTS_NAME,
    STATES_NAME,
    crc_of_garbage_list,
    garbage_key,
    is_garbage_list,
    is_segment_or_sums,
)
from quiver_actors.base.checksum import crc32
from quiver_actors.store.objects.creation import create_once
from quiver_actors.store.objects.object_store import ObjectStore

LIST_KEYS = 128
"""How many keys one list holds, and how many listable ones the head names at most."""
REQUESTS_AT_ONCE = 8


def shortened(store: ObjectStore, node: str, commit: int, keys: Sequence[str]) -> tuple[str, ...]:
    """Put all but a few of these keys into lists. Returns what the head names instead, in their order. Raises ArchiveError.

    Args:
        commit: for which the head is made.
    """
    listable = [key for key in keys if _never_comes_back(node, key)]
    if len(listable) < LIST_KEYS:
        return tuple(keys)
    whole = len(listable) // LIST_KEYS * LIST_KEYS
    lists = [_put(store, node, commit, listable[first : first + LIST_KEYS]) for first in range(0, whole, LIST_KEYS)]
    listed = frozenset(listable[:whole])
    return (*(key for key in keys if key not in listed), *lists)


def delete(store: ObjectStore, keys: Iterable[str]) -> None:
    """Delete objects, and what those of them that are lists name. Raises ArchiveError: the same call goes on."""
    given = list(keys)
    named = [each for key in given if is_garbage_list(key) for each in _listed(store, key)]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for part in (named, given):  # a list goes last: it names what is left after an error
            for _ in pool.map(store.delete, part):
                continue


def next_turn(garbage: Iterable[str], due: Collection[str]) -> list[str]:
    """The keys that are deleted in one turn: some, or one list. Segments that pushes wait for have their turn between."""
    found = [key for key in garbage if key in due]
    if found and is_garbage_list(found[0]):
        return found[:1]
    return [key for key in found if not is_garbage_list(key)][:LIST_KEYS]


def _never_comes_back(node: str, key: str) -> bool:
    return key.startswith((f"{node}/{PARTS_NAME}/", f"{node}/{STATES_NAME}/")) or is_segment_or_sums(key)


def _put(store: ObjectStore, node: str, commit: int, keys: list[str]) -> str:
    content = "".join(f"{each}\n" for each in keys).encode()
    key = garbage_key(node, commit, crc32(content))
    create_once(store, key, content)
    return key


def _listed(store: ObjectStore, key: str) -> list[str]:
    """The keys in a list; none if it is gone or damaged: then nothing is deleted by it."""
    found = store.get(key)
    if found is None or crc32(found.content) != crc_of_garbage_list(key):
        return []
    return found.content.decode().splitlines()
