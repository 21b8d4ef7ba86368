"""A store in this process: what a client of a node can do, without a node."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.base.model import Durability
from quiver_actors.embedded import Store
from quiver_actors.errors import (
    AlreadyRunning,
    ClosedError,
    ConfigError,
    InvalidBundle,
    SequenceGap,
    Throttled,
    UnknownTopic,
    UsageError,
)
from tests.unit.embedded.batches import PATIENCE_SECONDS, delivered, number_of, numbered, stored, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with quiver_actors.open(path) as opened:
        yield opened


def test_what_is_pushed_is_synced_and_read_back_in_order(store: Store) -> None:
    receipts = [store.push(numbered(number)) for number in range(5)]
    assert {receipt.durability for receipt in receipts} == {Durability.SYNCED}
    assert [receipt.bundle_id for receipt in store.push_many(map(numbered, range(5, 2000)))][-1].core == 0
    assert stored(store) == list(range(2000))


def test_a_store_is_recovered_and_goes_on(path: Path) -> None:
    for first in (0, 10, 20):
        with quiver_actors.open(path) as opened:
            opened.push_many(map(numbered, range(first, first + 10)))
            assert stored(opened) == list(range(first + 10))


def test_subscribers_are_durable_and_get_each_bundle_once(path: Path) -> None:
    with quiver_actors.open(path) as opened:
        opened.subscribe("s", start="earliest").close()
        opened.push_many(map(numbered, range(100)))
        assert delivered(opened, "s", 60) == list(range(60))
    with quiver_actors.open(path) as opened:
        assert delivered(opened, "s", 40) == list(range(60, 100))
        (info,) = opened.subscribers()[0]
        assert (info.subscriber, info.pending, info.acked) == ("s", 0, 40)


def test_a_bundle_whose_lease_ends_comes_again_to_another_consumer(store: Store) -> None:
    store.push(numbered(1))
    with store.subscribe("s", start="earliest", lease=0.2) as slow, store.subscribe("s", lease=0.2) as other:
        first = slow.get(timeout=PATIENCE_SECONDS) or other.get(timeout=PATIENCE_SECONDS)
        assert first is not None
        again = None
        while again is None:
            again = other.get(timeout=0.2) or slow.get(timeout=0.2)
        assert number_of(again) == 1
        assert again.delivery_count > 1
        again.ack()


def test_a_bundle_that_is_rejected_too_often_becomes_a_dead_letter(store: Store) -> None:
    store.push(numbered(7))
    with store.subscribe("s", start="earliest", max_deliveries=1, exhausted="dead_letter") as subscription:
        delivery = subscription.get(timeout=PATIENCE_SECONDS)
        assert delivery is not None
        delivery.defer(0.0)
        subscription.flush(PATIENCE_SECONDS)
        until(lambda: "default.dead" in store.topics() or len(store.topics()) > 1, "the topic of dead letters")
    (letters,) = set(store.topics()) - {"default"}
    assert delivered(store, "reader", 1, letters) == [7]


def test_a_transaction_is_visible_as_a_whole_or_not_at_all(store: Store) -> None:
    with contextlib.suppress(KeyError), store.transaction("lost") as txn:
        txn.push(numbered(1))
        raise KeyError
    with store.transaction("kept") as txn:
        txn.push(numbered(2))
        txn.push(numbered(3))
        assert stored(store) == []
    assert stored(store) == [2, 3]
    with store.transaction("kept") as txn:
        txn.push(numbered(4))
    assert stored(store) == [2, 3], "it was committed before"


def test_numbered_bundles_are_stored_once(path: Path) -> None:
    with quiver_actors.open(path) as opened:
        opened.push(numbered(0), producer="p", sequence=0)
    with quiver_actors.open(path) as opened:
        assert opened.push(numbered(0), producer="p", sequence=0).duplicate
        with pytest.raises(SequenceGap):
            opened.push(numbered(2), producer="p", sequence=2)
        assert stored(opened) == [0]


def test_topics_come_change_and_go(path: Path) -> None:
    with quiver_actors.open(path) as opened:
        opened.create_topic("flights", {"slots": {"page": 3}})
        opened.push({"page": numbered(1)}, topic="flights")
        opened.set_topic("flights", {"segment.target_size": "8MiB"})
    with quiver_actors.open(path) as opened:
        assert opened.topics()["flights"].slots == {"page": 3}
        opened.delete_topic("flights")
        with pytest.raises(UnknownTopic):
            opened.push(numbered(2), topic="flights")
    assert not (path / "flights").exists()


def test_settings_are_checked_and_hold(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"argument settings.*retention.sizecap"):
        quiver_actors.open(path, settings={"retention.sizecap": "1GiB"})
    with quiver_actors.open(path, settings={"topics": {"flights": {"slots": {"page": 0}}}}) as opened:
        assert opened.topics()["flights"].slots == {"page": 0}


@pytest.mark.long
def test_the_size_cap_holds_and_pushes_wait_for_room(path: Path) -> None:
    cap_bytes = 48 << 20
    settings = {
        "retention.size_cap": "48MiB",
        "retention.min_free": "0B",
        "segment.target_size": "1MiB",
        "segment.max_open_duration": "50ms",
    }
    batch = pa.record_batch({"number": pa.array([1]), "blob": pa.array([os.urandom(1 << 19)], pa.binary())})
    with quiver_actors.open(path, settings=settings) as opened:
        opened.subscribe("slow", start="earliest").close()
        with pytest.raises(Throttled):
            opened.push_many([batch] * (4 * cap_bytes // (1 << 19)), timeout=3.0)
        used = sum(each.stat().st_blocks * 512 for each in path.rglob("*") if each.is_file())
        assert used <= cap_bytes
        pushed = len(stored(opened))
        assert pushed > 4
        assert delivered(opened, "slow", pushed) == [1] * pushed
        assert opened.push(batch, timeout=PATIENCE_SECONDS).durability is Durability.SYNCED


@pytest.mark.long
def test_a_topic_keeps_to_its_share_of_the_cap(path: Path) -> None:
    settings = {
        "retention.size_cap": "128MiB",
        "retention.min_free": "0B",
        "segment.target_size": "1MiB",
        "topics": {"small": {"retention.cap_share": "25%", "retention.size_cap_policy": "reject"}},
    }
    batch = pa.record_batch({"number": pa.array([1]), "blob": pa.array([os.urandom(1 << 19)], pa.binary())})
    with quiver_actors.open(path, settings=settings) as opened:
        for topic in ("small", "default"):
            opened.subscribe("slow", topic=topic, start="earliest").close()
        with pytest.raises(Throttled, match="small"):
            opened.push_many([batch] * 80, topic="small")
        assert len(opened.push_many([batch] * 80)) == 80, "the other topic may have more"


def test_lone_pushes_go_on_over_the_ends_of_logs_and_are_delivered_at_once(path: Path) -> None:
    batch_of = [pa.record_batch({"number": pa.array([n]), "blob": [os.urandom(1 << 17)]}) for n in range(24)]
    with quiver_actors.open(path, settings={"segment.target_size": "1MiB"}) as opened:
        with opened.subscribe("s", start="earliest") as subscription:
            for number, batch in enumerate(batch_of):
                receipt = opened.push(batch)
                assert receipt.durability is Durability.SYNCED
                delivery = subscription.get(timeout=PATIENCE_SECONDS)
                assert delivery is not None
                assert number_of(delivery) == number
                delivery.ack()
        assert receipt.bundle_id.segment_seq >= 2, "several logs have come to their end"


# --- one owner -----------------------------------------------------------------------------------------------------------


def test_a_directory_is_open_once_in_a_process(store: Store, path: Path) -> None:
    with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}"):
        quiver_actors.open(path)
    store.close()
    quiver_actors.open(path).close()


def test_a_closed_store_refuses_and_closing_twice_is_no_error(store: Store) -> None:
    subscription = store.subscribe("s")
    store.close()
    store.close()
    with pytest.raises(ClosedError):
        store.push(numbered(1))
    with pytest.raises(ClosedError):
        subscription.get(timeout=0)
    with pytest.raises(ClosedError):
        store.create_topic("flights")


def test_a_store_that_nobody_refers_to_any_more_closes_itself(path: Path) -> None:
    opened = quiver_actors.open(path)
    opened.push(numbered(1))
    del opened

    def is_free() -> bool:
        try:
            quiver_actors.open(path).close()
        except AlreadyRunning:
            return False
        return True

    until(is_free, "the directory to be free")


def test_a_store_cannot_be_pickled(store: Store) -> None:
    with pytest.raises(UsageError, match="start a node"):
        pickle.dumps(store)


def test_a_fork_gets_a_clear_error_and_does_not_disturb(store: Store, path: Path) -> None:
    subscription = store.subscribe("s", start="earliest")
    store.push(numbered(1))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for call in (lambda: store.push(numbered(2)), lambda: subscription.get(timeout=1), store.topics):
            try:
                call()
            except ClosedError as error:
                said.append(str(error))
        subscription.close()
        store.close()
        os.write(writer, "\n".join(said).encode())
        os._exit(0)
    os.close(writer)
    assert os.waitpid(pid, 0)[1] == 0
    with os.fdopen(reader) as told:
        lines = told.read().splitlines()
    assert len(lines) == 3
    assert all(f"process {os.getpid()}" in line for line in lines)
    store.push(numbered(3))
    assert stored(store) == [1, 3]


def test_a_forked_child_that_lives_on_does_not_hold_the_directory(path: Path) -> None:
    opened = quiver_actors.open(path)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        opened.close()
        quiver_actors.open(path).close()
    finally:
        os.close(writer)
        os.waitpid(pid, 0)
        os.close(reader)


# --- threads, errors, interrupts -----------------------------------------------------------------------------------------


def test_threads_share_a_store(store: Store) -> None:
    def push(first: int) -> None:
        for number in range(first, first + 50):
            store.push(numbered(number))

    threads = [threading.Thread(target=push, args=(1000 * each,)) for each in range(8)]
    for thread in threads:
        thread.start()
    found = delivered(store, "s", 400)
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(1000 * each + number for each in range(8) for number in range(50))
    for each in range(8):
        own = [number for number in found if number // 1000 == each]
        assert own == sorted(own), "what one thread pushed comes in its order"


def test_an_error_of_a_call_costs_that_call_alone(store: Store) -> None:
    with pytest.raises(InvalidBundle):
        store.push({0: 1})
    with pytest.raises(UnknownTopic):
        store.push(numbered(1), topic="nosuch")
    store.push(numbered(2))
    assert stored(store) == [2]


def test_a_turn_that_is_broken_off_is_recovered_from_and_loses_nothing(store: Store) -> None:
    store.push_many(map(numbered, range(10)))
    worker = store._node.drive.worker
    assert worker is not None

    next_turn_ns = worker.loop.next_turn_ns

    def interrupted() -> int:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return next_turn_ns()

    worker.loop.next_turn_ns = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        store.push_many([numbered(10)])
    store.push(numbered(11), timeout=PATIENCE_SECONDS)
    assert [number for number in stored(store) if number != 10] == [*range(10), 11]
    assert store._node.drive.worker is not worker


def test_a_lone_push_that_is_broken_off_is_recovered_from_and_loses_nothing(store: Store) -> None:
    for number in range(10):
        store.push(numbered(number))
    worker = store._node.drive.worker
    assert worker is not None

    def interrupted() -> bool:
        raise KeyboardInterrupt

    worker.commits.finish_lone = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        store.push(numbered(10))
    for number in (11, 12):
        store.push(numbered(number), timeout=PATIENCE_SECONDS)
    assert [number for number in stored(store) if number != 10] == [*range(10), 11, 12]
    assert store._node.drive.worker is not worker


# Python itself reports an interrupt that comes in a callback of its collector, as hypothesis has one, and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_calls_that_are_interrupted_leave_a_store_that_goes_on(store: Store) -> None:
    """An interrupt at any place of a push: what was acknowledged is there, once, and the next push is taken."""

    class Alarm(Exception):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Alarm

    acknowledged: list[int] = []
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 * (1 + number % 40))
                store.push(numbered(number), timeout=PATIENCE_SECONDS)
                signal.setitimer(signal.ITIMER_REAL, 0)
                acknowledged.append(number)
            except Alarm:
                continue
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    store.push(numbered(1000), timeout=PATIENCE_SECONDS)
    found = stored(store)
    assert set(found) >= {*acknowledged, 1000}
    assert len(set(found)) == len(found), "a push that was not acknowledged was not sent again by itself"


def test_stores_that_are_closed_keep_no_descriptors(tmp_path: Path) -> None:
    def opened_and_closed(name: str) -> None:
        with quiver_actors.open(tmp_path / name) as store:
            store.push(numbered(1))

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    opened_and_closed("first")
    until(lambda: not any(each.name in ("quiver-ask", "quiver-cold") for each in threading.enumerate()), "its threads")
    before = count()
    for number in range(5):
        opened_and_closed(f"store-{number}")
    until(lambda: count() <= before, "the descriptors")
