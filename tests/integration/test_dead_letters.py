"""Dead letters when something fails on their way, and `quiver subscribers replay-dead-letters`."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client, Delivery, Subscription
from quiver_actors.store.subscriber.dead_letters import Origin, origin_of
from tests.integration.client_node import ClientNode, client_node, numbers, take
from tests.support.commands import run_here
from tests.unit.node.worker.faulty_disk import FaultyDisk
from tests.unit.node.worker.harness import WireClient, WorkerThread, running, settings, table, topic, until

ONCE = m.Terms(max_deliveries=1)
DEAD = "default-dead"


def faulty_disk(root: Path) -> FaultyDisk:
    (root / "data").mkdir()
    return FaultyDisk(str(root / "data"))


def store(worker: WorkerThread, *values: int) -> None:
    producer = worker.producer()
    for value in values:
        producer.push_and_wait(table(value))
    producer.flush()


def exhaust(worker: WorkerThread, bundles: int) -> WireClient:
    """A consumer that could not take the first bundles."""
    client = worker.connect()
    client.register("s", credit=bundles, terms=ONCE)
    for deliver, index, _ in client.values(bundles):
        client.resolve(deliver, [index], outcome="defer")
    return client


def blocked(client: WireClient) -> int:
    tag = client.next_tag()
    client.send(m.Pending(tag, "default", "s"))
    return client.expect(m.PendingInfo, lambda found: found.tag == tag).blocked


def letters(worker: WorkerThread, count: int) -> list[tuple[Origin | None, list[int]]]:
    reader = worker.connect()
    reader.register("undertaker", topic=DEAD, start="earliest", credit=count)
    reader.flush(DEAD)
    found = []
    for deliver, index, values in reader.values(count, "undertaker"):
        found.append((origin_of(reader.segments[DEAD, deliver.segment_seq].bundle(index)), values))
    return found


# --- failures ----------------------------------------------------------------------------------------------------------------


def test_crash_between_letter_and_resolution_makes_a_second_letter_of_the_same_origin(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    with running(before, settings(topic(progress_flush_interval_ns=60 * SECOND_NS))) as worker:
        store(worker, 7)
        client = exhaust(worker, 1)
        until(lambda: blocked(client) == 0, "the letter to be durable")
        # What a crash finds now: the letter, and no progress that knows of it.
        shutil.copytree(before / "data", after / "data")
    with running(after) as worker:
        client = exhaust(worker, 1)
        until(lambda: blocked(client) == 0, "the second letter")
        found = letters(worker, 2)
        assert [values for _, values in found] == [[7], [7]]
        assert found[0][0] == found[1][0]
        assert found[0][0] is not None
        origin = found[0][0]
        assert (origin.topic, origin.core, origin.segment_seq, origin.bundle_index) == ("default", 0, 0, 0)


def test_letter_waits_for_room_and_holds_up_nothing_else(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    disk.faults.set("allocate", DEAD, errno.ENOSPC)
    with running(tmp_path, disk=disk) as worker:
        store(worker, 7, 8)
        client = exhaust(worker, 1)
        client.credit("s", 1)
        ((deliver, index, values),) = client.values(1)
        assert values == [8]
        client.resolve(deliver, [index])
        client.flush_progress("s")
        assert blocked(client) == 1
        disk.faults.clear()
        until(lambda: blocked(client) == 0, "room")
        assert [values for _, values in letters(worker, 1)] == [[7]]
    disk.close()


def test_bundle_whose_letter_could_not_be_made_durable_comes_again(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    with running(tmp_path, disk=disk) as worker:
        store(worker, 7)
        # Where the letter goes; the empty log of the new topic is made before.
        disk.faults.set("fdatasync", f"{DEAD}/core_0/wal/quiver.wal.spare")
        exhaust(worker, 1)
        assert worker.wait() != 0, "a worker with a failed topic makes room for another one"
    disk.faults.clear()
    with running(tmp_path, disk=disk) as worker:
        client = exhaust(worker, 1)
        until(lambda: blocked(client) == 0, "the letter to be durable")
        found = letters(worker, 1)
        assert (found[0][0] is not None, found[0][1]) == (True, [7])
    disk.close()


def test_a_consumer_that_wants_no_letters_gets_what_still_waits_for_one(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    disk.faults.set("allocate", DEAD, errno.ENOSPC)
    with running(tmp_path, disk=disk) as worker:
        store(worker, *range(20))
        client = exhaust(worker, 20)
        assert blocked(client) == 20
        again = worker.connect()
        again.register("s", credit=20, terms=m.Terms())
        # Sixteen of them had been read already, and waited for room.
        assert sorted(values[0] for _, _, values in again.values(20)) == list(range(20))
        assert blocked(again) == 0
    disk.close()


def test_a_bundle_that_is_too_large_for_a_letter_is_kept_and_can_be_claimed(tmp_path: Path) -> None:
    """Regression: the bundle was read once a second for ever, and no consumer could get it before the next start."""
    subscriber, dead = "s" * 64, "d" * 64
    terms = m.Terms(max_deliveries=1, dead_letter_topic=dead)
    envelope = pa.record_batch({"flag": pa.repeat(pa.scalar(True), 2_400_000)})
    with running(tmp_path, settings(topic(), topic(dead))) as worker:
        producer = worker.producer()
        producer.declare(1, envelope.schema, slot_id=ENVELOPE_SLOT)
        producer.push_and_wait(envelope, handle=1, slot_id=ENVELOPE_SLOT)
        producer.flush()
        client = worker.connect()
        client.register(subscriber, credit=1, terms=terms)
        deliver, indexes = client.delivered()
        client.resolve(deliver, indexes, outcome="defer")

        def is_claimed() -> bool:
            client.send(m.ClaimRef(client.next_tag(), "default", subscriber, deliver.segment_seq, 0))
            return isinstance(client.receive(), m.Deliver)

        until(is_claimed, "the bundle to be given up as a letter")


# --- replay ------------------------------------------------------------------------------------------------------------------


def give_up(subscription: Subscription, count: int) -> None:
    for delivery in take(subscription, count):
        delivery.defer()
    subscription.flush()


def replay(node: ClientNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_here("subscribers", "replay-dead-letters", *arguments, "--run-dir", str(node.directories.run))


def replayed(node: ClientNode, *arguments: str) -> dict[str, Any]:
    done = replay(node, "other-dead", "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def wait_letters(client: Client, count: int) -> None:
    def are_there() -> bool:
        client.flush("other-dead")
        return sum(info.bundle_count for infos in client.segments("other-dead").values() for info in infos) == count

    until(are_there, f"{count} letters")


def contents(delivery: Delivery) -> dict[int, list[dict[str, Any]]]:
    return {slot: batch.to_pylist() for slot, batch in delivery.slots.items()}


def test_letters_go_back_as_they_were_and_once() -> None:
    enveloped = {0: numbers(2), 63: pa.record_batch({"key": ["a", "b"]})}
    with client_node(cores=2) as node, node.connect() as client:
        with (
            client.subscribe("first", topic="other", max_deliveries=1) as first,
            client.subscribe("second", topic="other", max_deliveries=1) as second,
        ):
            client.push(numbers(1), topic="other", item_count=17)
            client.push(enveloped, topic="other")
            client.flush("other")
            give_up(first, 2)
            give_up(second, 1)
            with node.connect() as fresh:
                wait_letters(fresh, 3)
                fresh.push(numbers(9), topic="other-dead")  # somebody's own bundle
            client.flush("other")
        with client.subscribe("healed", topic="other") as healed:
            plan = replayed(node, "--dry-run", "--subscriber", "first")
            assert plan["replayed"] == [{"topic": "other", "subscriber": "first", "bundles": 2}]
            assert (plan["not_wanted"], plan["no_letters"]) == (1, 1)
            refused = replay(node, "other-dead")
            assert (refused.returncode, "give --yes" in refused.stderr) == (2, True)
            assert replayed(node, "--yes", "--subscriber", "first") == {**plan, "dry_run": False}
            found = take(healed, 2)
            lone, with_envelope = sorted(map(contents, found), key=len)
            assert lone == {0: numbers(1).to_pylist()}
            assert with_envelope == {slot: batch.to_pylist() for slot, batch in enveloped.items()}
            assert {delivery.item_count for delivery in found} == {17, None}
            assert replayed(node, "--dry-run")["replayed"] == [{"topic": "other", "subscriber": "second", "bundles": 1}]
            assert replayed(node, "--yes")["replayed"] == [{"topic": "other", "subscriber": "second", "bundles": 1}]
            nothing = replayed(node, "--yes")
            assert (nothing["replayed"], nothing["no_letters"]) == ([], 1)


def test_letters_that_cannot_go_back_stay() -> None:
    config = '[topics.other]\n[topics."other-dead"]\n'
    with client_node(config=config) as node, node.connect() as client:
        with client.subscribe("picky", topic="other", max_deliveries=1) as subscription:
            client.push(numbers(1), topic="other")
            client.flush("other")
            give_up(subscription, 1)
            wait_letters(client, 1)
        assert node.process.stop() == 0
        (node.directories.base / "quiver.toml").write_text('[topics."other-dead"]\n')
        node.restart()
        client.delete_topic("other")
        failed = replay(node, "other-dead", "--yes")
        assert failed.returncode == 1
        assert "1 bundles could not be sent back and stay: topic 'other'" in failed.stdout
        assert replayed(node, "--dry-run")["replayed"] == [{"topic": "other", "subscriber": "picky", "bundles": 1}]
        unknown = replay(node, "nowhere-dead", "--yes")
        assert (unknown.returncode, "nowhere-dead" in unknown.stderr) == (2, True)


def test_what_was_sent_back_is_on_the_disk_before_its_letter_is_done_with() -> None:
    """A receipt given before the bundle is synced: a crash of the machine could lose the bundle after its dead letter was deleted."""
    config = '[segment]\nmax_open_duration = "1h"\n[topics.other]\ndurability = "segment_only"\n'
    with client_node(config=config) as node, node.connect() as client:
        client.subscribe("keeper", topic="other").close()
        subscription = client.subscribe("picky", topic="other", max_deliveries=1)
        client.push(numbers(1), topic="other")
        client.flush("other")
        give_up(subscription, 1)
        with node.connect() as fresh:
            wait_letters(fresh, 1)
        assert replayed(node, "--yes")["replayed"] == [{"topic": "other", "subscriber": "picky", "bundles": 1}]
        sealed = [info.bundle_count for infos in client.segments("other").values() for info in infos]
        assert sum(sealed) == 2
