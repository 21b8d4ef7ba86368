"""Places of one token are taken before anything is opened: opens at the same time do not exceed them together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import quiver_actors
from quiver_actors import Store
from quiver_actors.base.rights import Caller, TokenHolder
from quiver_actors.errors import QuotaExceeded, UnknownTopic
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.consumers import Consumers
from quiver_actors.flight.datasets import Datasets
from tests.unit.node.worker.harness import until

ANN, BEN = (TokenHolder(name, Caller.ADMIN, frozenset()) for name in ("ann", "ben"))
MOST = 2


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path: Path = tmp_path_factory.mktemp("data")
    with quiver_actors.open(path, settings={"topics": {"clicks": {}}}) as opened:
        yield opened


class Opening:
    """Opens datasets or subscriptions of a store, and lets the opens wait for each other."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store: Any = store
        self.goes_on = threading.Event()
        self.kept: Any = Datasets(self._client) if kind == "datasets" else Consumers(self._client)
        self.kept.limit.most = MOST
        self._kind = kind

    def _client(self) -> Any:
        assert self.goes_on.wait(60)
        return self._store

    def open(self, holder: TokenHolder, topic: str = "clicks") -> Any:
        if self._kind == "datasets":
            bounds = rc.Bounds()
            return self.kept.open(
                holder, rc.OpenDataset(rc.REMOTE_VERSION, topic, None, bounds, None, None, None, False, False)
            )
        return self.kept.open(holder, rc.Subscribe(rc.REMOTE_VERSION, topic, f"s-{threading.get_ident()}", {}))


@pytest.fixture(params=["datasets", "subscriptions"])
def opening(store: Store, request: pytest.FixtureRequest) -> Iterator[Opening]:
    made = Opening(store, request.param)
    yield made
    made.kept.close()


def test_opens_at_the_same_time_do_not_exceed_the_limit_together(opening: Opening) -> None:
    refused: list[QuotaExceeded] = []
    opened: list[Any] = []

    def open_one() -> None:
        try:
            opened.append(opening.open(ANN))
        except QuotaExceeded as error:
            refused.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(MOST + 3)]
    for thread in threads:
        thread.start()
    # The others are refused while the first ones are being opened.
    until(lambda: len(refused) == 3, "three are refused")
    opening.goes_on.set()
    for thread in threads:
        thread.join(60)
    assert (len(opened), opening.kept.limit.count(ANN)) == (MOST, MOST)
    assert f"has {MOST} open " in str(refused[0])


def test_a_place_comes_back_with_a_failed_open_and_with_a_close(opening: Opening) -> None:
    opening.goes_on.set()
    check: Callable[[], int] = lambda: opening.kept.limit.count(ANN)  # noqa: E731
    for _ in range(MOST + 1):
        with pytest.raises(UnknownTopic):
            opening.open(ANN, "nothing")
    assert check() == 0
    opening.open(ANN)
    opening.open(BEN)
    opening.kept.idle_seconds = 0.0
    opening.kept.close_idle()
    assert (check(), opening.kept.limit.count(BEN)) == (0, 0)
    opening.open(ANN)
    opening.kept.close()
    assert check() == 0
