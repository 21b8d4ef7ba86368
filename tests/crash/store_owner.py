"""A process that owns an embedded store, as a campaign starts it: two producers, a subscriber and one who forks, each in a thread.

Everybody but the one who forks writes the journal of `book`. Who forks has a child try to use the store, and writes what came of it:
`refused pid` where the child got the error that names its parent, `took what` where a call went through, `hangs pid` where the child did
not end; a child that has tried may live on for a moment, so that the next owner comes while it is there.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import quiver_actors
from quiver_actors.embedded import Store
from quiver_actors.errors import AlreadyRunning, ClosedError, QuiverError
from tests.crash.bundles import TOPIC, bundle_of
from tests.crash.producer import push_for_ever
from tests.crash.subscriber import take_for_ever

FORK_PAUSE_SECONDS = 0.05
_LINGER_SECONDS = 0.2
_CHILD_SECONDS = 30
_PUSH_SECONDS = 60.0


def own(
    data: Path, config: Path, producers: dict[int, tuple[int, int]], subscribers: dict[str, int], forks: int | None
) -> None:
    """Own the store until SIGTERM, then close it.

    Args:
        producers: the first number and the descriptor of the journal, by producer.
        subscribers: the descriptor of the journal, by name.
        forks: the descriptor of the journal of who forks; None: nobody does.
    """
    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    with quiver_actors.open(data, config=config) as store:
        lives: list[Callable[[], None]] = []
        for producer, (first, journal) in producers.items():
            lives.append(_producing(store, producer, first, journal))
        for name, journal in subscribers.items():
            lives.append(_consuming(store, name, journal))
        if forks is not None:
            lives.append(lambda: _fork_for_ever(store, forks, ends))
        for life in lives:
            threading.Thread(target=_until_closed, args=(life, ends), daemon=True).start()
        ends.wait()


def _producing(store: Store, producer: int, first: int, journal: int) -> Callable[[], None]:
    return lambda: push_for_ever(store, producer, first, journal, pause_seconds=0.01, timeout_seconds=_PUSH_SECONDS)


def _consuming(store: Store, name: str, journal: int) -> Callable[[], None]:
    return lambda: take_for_ever(store, name, journal)


def _until_closed(life: Callable[[], None], ends: threading.Event) -> None:
    """Live until the store is closed by who has opened it. Any other end is one of the whole process."""
    try:
        life()
    except ClosedError:
        if ends.is_set():
            return
        os._exit(3)
    except BaseException:  # noqa: BLE001 - told in the log; the campaign sees that the owner has ended
        os.write(2, traceback.format_exc().encode())
        os._exit(4)


def _fork_for_ever(store: Store, journal: int, ends: threading.Event) -> None:
    bundle = bundle_of(0, 0)
    while not ends.is_set():
        select.select([], [], [], FORK_PAUSE_SECONDS)
        pid = os.fork()
        if pid == 0:
            _try_in_child(store, bundle, journal, ends)
        deadline = time.monotonic() + _CHILD_SECONDS
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.write(journal, f"hangs {pid}\n".encode())
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                break
            select.select([], [], [], 0.01)


def _try_in_child(store: Store, bundle: object, journal: int, ends: threading.Event) -> None:
    signal.alarm(_CHILD_SECONDS)  # the owner may be killed before it sees that this child hangs
    parent, said = os.getppid(), ""
    calls: dict[str, Callable[[], object]] = {
        "push": lambda: store.push(bundle, topic=TOPIC),
        "push_many": lambda: store.push_many([bundle], topic=TOPIC),
        "subscribe": lambda: store.subscribe("child", topic=TOPIC),
        "read": lambda: list(store.read(TOPIC, 0)),
        "topics": store.topics,
    }
    try:
        for name, call in calls.items():
            try:
                call()
                said = f"took {name}"
            except ClosedError as error:
                # Of a parent that is killed nobody knows the number any more; one that ends has closed its store itself.
                is_alone = os.getppid() != parent or ends.is_set()
                if f"process {parent}" not in str(error) and not is_alone:
                    said = f"took {name}_without_a_name"
            except BaseException as error:  # noqa: BLE001 - told in the journal
                said = f"took {name}_{type(error).__name__}"
        os.write(journal, f"{said or f'refused {os.getpid()}'}\n".encode())
        select.select([], [], [], _LINGER_SECONDS)
    finally:
        os._exit(0)


def try_to_open(data: Path, config: Path) -> str:
    """What a second owner hears: "" if it is refused by name of the first, else what happened."""
    try:
        store = quiver_actors.open(data, config=config)
    except AlreadyRunning as error:
        return str(error)
    except QuiverError as error:
        return f"{type(error).__name__}: {error}"
    store.close()
    return "it opened the store"
