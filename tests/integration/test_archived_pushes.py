"""Pushes into topics whose durability is `archived`, on a real node: what their receipts promise lies in the object store."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors import Durability, aio
from quiver_actors.client import StoredNotArchived, connect
from quiver_actors.errors import ConfigError, PushTimeout, UsageError
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.integration.client_node import ClientNode, client_node, first_id, numbers, take
from tests.integration.test_archive import archived_ids, archived_parts, kill_archiver
from tests.security.guest import AS_ROOT, GUEST_UID, as_user

CONFIG = """
node = "anode"
durability = "archived"
[segment]
max_open_duration = "1h"
[archive]
url = "{url}"
enabled = true
retry_interval = "200ms"
refused_interval = "200ms"
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    made = open_store(f"file://{tmp_path}/archive")
    yield made
    made.close()


@contextlib.contextmanager
def archiving_node(url: str, more: str = "", cores: int = 1) -> Iterator[ClientNode]:
    with client_node(cores=cores, config=CONFIG.format(url=url) + more) as node:
        yield node


def test_a_push_returns_when_its_bundle_is_in_the_object_store(store: ObjectStore) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        for number in range(4):  # the first goes the general way, the others begin on the short one
            receipt = client.push(numbers(number))
            assert receipt.durability is Durability.ARCHIVED
            assert archived_ids(store) == list(range(number + 1))
        receipts = client.push_many([numbers(n) for n in range(4, 104)])
        assert {receipt.durability for receipt in receipts} == {Durability.ARCHIVED}
        assert archived_ids(store) == list(range(104))
        client.wait_archived(receipts, timeout=0)
        numbered = client.push(numbers(104), producer="p", sequence=0)
        again = client.push(numbers(104), producer="p", sequence=0)
        assert (numbered.durability, again.durability) == (Durability.ARCHIVED, Durability.ARCHIVED)
        assert (again.bundle_id, again.duplicate) == (numbered.bundle_id, True)
        assert archived_ids(store) == list(range(105))


def test_pushes_of_several_threads_share_a_segment(store: ObjectStore) -> None:
    with archiving_node(store.url, "commit_interval = '1s'\n") as node, node.connect() as client:
        client.push(numbers(1000))
        threads = [threading.Thread(target=client.push, args=(numbers(n),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(archived_ids(store)) == [*range(8), 1000]
        segments = [segment for part in archived_parts(store) for segment in part.segments]
        assert len(segments) < 8, "one segment for each second, not for each push"


def test_pushes_of_tasks_wait_as_well(store: ObjectStore) -> None:
    async def push_all() -> set[Durability]:
        async with aio.connect(node.directories.run) as client:
            receipts = await asyncio.gather(*(client.push(numbers(n)) for n in range(20)))
            many = await client.push_many([numbers(n) for n in range(20, 40)])
            return {receipt.durability for receipt in (*receipts, *many)}

    with archiving_node(store.url) as node:
        assert asyncio.run(push_all()) == {Durability.ARCHIVED}
        assert sorted(archived_ids(store)) == list(range(40))


def test_all_workers_and_topics_are_waited_for_and_other_topics_are_not(store: ObjectStore) -> None:
    with archiving_node(store.url, cores=2) as node, node.connect() as client:
        client.create_topic("plain", {"durability": "wal"})
        client.create_topic("other", {})
        assert client.push(numbers(0), topic="plain").durability is Durability.SYNCED
        cores = set()
        for key in ("a", "b", "c", "d"):
            receipt = client.push(numbers(0), key=key, topic="other")
            assert receipt.durability is Durability.ARCHIVED
            cores.add(receipt.bundle_id.core)
        assert cores == {0, 1}
        assert client.push(numbers(1), topic="plain").durability is Durability.SYNCED


def test_with_the_store_away_the_error_has_the_receipts_and_says_what_is_durable(
    store: ObjectStore, tmp_path: Path
) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        client.push(numbers(100))
        place = tmp_path / "archive/anode"
        place.rename(tmp_path / "aside")
        place.write_text("in the way")
        with pytest.raises(
            StoredNotArchived, match=r"durable here, not archived after [12].* s: .*wait_archived"
        ) as caught:
            client.push(numbers(0), timeout=2)
        assert not isinstance(caught.value, PushTimeout)
        assert not caught.value.retriable
        receipts = caught.value.receipts
        assert receipts is not None
        assert [receipt.durability for receipt in receipts] == [Durability.SYNCED]
        assert pickle.loads(pickle.dumps(caught.value)).receipts == receipts
        with pytest.raises(StoredNotArchived):
            client.push_many([numbers(n) for n in range(1, 4)], timeout=2)
        with client.subscribe("reader", start="earliest") as deliveries:
            assert [first_id(each) for each in take(deliveries, 5)] == [100, 0, 1, 2, 3]
        place.unlink()
        (tmp_path / "aside").rename(place)
        client.wait_archived(receipts, timeout=60)
        assert client.push(numbers(4), timeout=60).durability is Durability.ARCHIVED
        assert archived_ids(store) == [100, 0, 1, 2, 3, 4]


def test_a_killed_worker_delays_pushes_and_stores_none_twice(store: ObjectStore) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        client.push(numbers(0), producer="p", sequence=0)
        pushing = threading.Thread(target=client.push, args=(numbers(1),), kwargs={"producer": "p", "sequence": 1})
        pushing.start()
        node.kill_worker(0)
        pushing.join()
        assert client.push(numbers(2), producer="p", sequence=2, timeout=60).durability is Durability.ARCHIVED
        assert archived_ids(store) == [0, 1, 2]


def test_the_durability_may_change_while_clients_are_connected(store: ObjectStore) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        client.create_topic("changing", {"durability": "wal"})
        assert [client.push(numbers(n), topic="changing").durability for n in range(2)] == [Durability.SYNCED] * 2
        client.set_topic("changing", {"durability": "archived"})
        receipt = client.push(numbers(2), topic="changing")
        assert receipt.durability is Durability.ARCHIVED
        client.wait_archived([receipt], timeout=0)
        client.set_topic("changing", {"durability": "wal"})
        assert [client.push(numbers(n), topic="changing").durability for n in range(2)] == [Durability.SYNCED] * 2


def test_a_topic_that_was_created_anew_is_not_taken_for_the_former_one(store: ObjectStore) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        client.create_topic("again", {})
        for number in range(3):
            client.push(numbers(number), topic="again")
        client.delete_topic("again")
        client.create_topic("again", {})
        with node.connect() as other:
            assert other.push(numbers(7), topic="again").durability is Durability.ARCHIVED
        assert [n for n in archived_ids(store) if n == 7] == [7]


@AS_ROOT
def test_a_guest_waits_without_any_right_to_the_archive(store: ObjectStore) -> None:
    more = f'[access]\ngroup = "nogroup"\n[topics.open]\nallowed_uids = [{GUEST_UID}]\n'
    with archiving_node(store.url, more) as node:
        node.directories.base.chmod(0o711)
        with as_user(GUEST_UID, 65534), connect(node.directories.run, timeout=60) as client:
            assert client.push(numbers(3), topic="open").durability is Durability.ARCHIVED
        assert archived_ids(store) == [3]


def test_what_cannot_wait_is_refused_by_name(store: ObjectStore, tmp_path: Path) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        with pytest.raises(UsageError, match="'archived', and transactions do not wait"):
            client.stage("txn-1")
        for values in ({"archive.enabled": False}, {"wal.flush_interval": "25ms"}):
            with pytest.raises(ConfigError, match="archived"):
                client.create_topic("wrong", values)
        assert "wrong" not in client.topics()
    wrong: tuple[dict[str, object], ...] = (
        {"durability": "archived"},
        {"durability": "archived", "archive.enabled": True},
    )
    for each in wrong:
        with (
            quiver_actors.open(tmp_path / "store") as opened,
            pytest.raises(ConfigError, match=r"durability.*archived"),
        ):
            opened.create_topic("t", each)
    config = tmp_path / "quiver.toml"
    config.write_text(CONFIG.format(url=store.url))
    with pytest.raises(ConfigError, match="'archived', and a store in this process has no archiver"):
        quiver_actors.open(tmp_path / "other", config=config)


def test_who_waits_on_after_a_timeout_has_every_bundle_archived_once(store: ObjectStore) -> None:
    with archiving_node(store.url) as node, node.connect() as client:
        client.push(numbers(0), producer="p", sequence=0)
        for number in range(1, 3):
            kill_archiver(node)
            pushed = None
            while pushed is None:
                try:
                    pushed = [client.push(numbers(number), producer="p", sequence=number, timeout=0.5)]
                except StoredNotArchived as error:
                    pushed = list(error.receipts or ())
                except PushTimeout:
                    continue  # a busy machine; numbered bundles may be pushed again
            client.wait_archived(pushed, timeout=120)
            assert archived_ids(store) == list(range(number + 1))
