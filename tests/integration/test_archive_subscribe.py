"""New subscribers that begin in the archive: archive, disk and open log as one stream, with progress that survives whatever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors import aio
from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import SubscriberInfo
from quiver_actors.cli.main import main
from quiver_actors.client import Client, Delivery, GapNotice
from quiver_actors.client.subscribe_request import SubscribeOptions
from quiver_actors.errors import DataLost, FormatError, NotStored, UsageError
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node
from tests.integration.remote.servers import Served
from tests.integration.test_archive import CONFIG, archiver_pids, archiving_node
from tests.integration.test_archive_one_read import MORE, PUSHED, beginning, bundle, first_on_disk, push

NOW = ["--topic", "wide", "--older-than", "0s", "--yes"]
LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientNode]:
    directory = tmp_path_factory.mktemp("subscribed")
    with archiving_node(f"file://{directory}/archive", MORE) as node, node.connect() as client:
        push(client, PUSHED)
        wait_until(lambda: first_on_disk(client) > 5, "archived segments have left the disk", 180)
        yield node


def number_of(delivery: Delivery | aio.Delivery) -> int:
    found: int = delivery["view"].column(0)[0].as_py()
    return found


def info_of(client: Client, name: str) -> SubscriberInfo:
    return next(info for info in client.subscribers("wide")[0] if info.subscriber == name)


def take(client: Client, name: str, count: int, start: BundleId | int = 0) -> list[int]:
    """The next bundles of a subscriber, each acknowledged for good."""
    found: list[int] = []
    with client.subscribe(name, topic="wide", start=start) as deliveries:
        while len(found) < count and (delivery := deliveries.get(20)) is not None:
            with delivery:
                found.append(number_of(delivery))
        assert deliveries.flush() == []
    return found


def test_a_subscriber_gets_archive_disk_and_open_log_in_order(node: ClientNode) -> None:
    with node.connect() as client:
        whole = [(each.bundle_id, each.ingestion_unix_ns) for each in client.read("wide", 0, beginning())]
        starts: list[tuple[BundleId | datetime.datetime | int | None, int]] = [
            (beginning(), 0),
            (LONG_AGO, 0),
            (whole[7][0], 7),
            (whole[8][1], 8),
        ]
        for start, first in starts:
            assert start is not None
            name = f"from-{first}-{type(start).__name__}"
            with client.subscribe(name, topic="wide", start=start, gaps="deliver") as deliveries:
                assert deliveries.pending_count() == PUSHED - first
                found = []
                for number in range(first, PUSHED):
                    delivery = deliveries.get(20)
                    assert isinstance(delivery, Delivery)
                    with delivery:
                        assert dict(delivery.slots) == {0: bundle(number)["page"], 1: bundle(number)["view"]}
                        found.append((delivery.bundle_id, delivery.ingestion_unix_ns))
                assert found == whole[first:]
                deliveries.flush()
                assert deliveries.all_drained()
            client.unsubscribe(name, topic="wide")


def kill_node(node: ClientNode) -> None:
    node.kill_supervisor()
    node.restart()


def test_progress_over_the_archive_survives_kills_of_everybody(node: ClientNode) -> None:
    """Every second bundle is acknowledged first, so that what is durable is not a beginning; then each process is killed once."""
    done: list[int] = []
    with node.connect() as client:
        assert "killed" not in {info.subscriber for info in client.subscribers("wide")[0]}
    kills = [
        lambda: node.kill_worker(0),
        lambda: os.kill(archiver_pids(node)[0], signal.SIGKILL),
        lambda: kill_node(node),
        lambda: None,
    ]
    for turn, kill in enumerate(kills):
        with node.connect() as client:
            deliveries = client.subscribe("killed", topic="wide", start=LONG_AGO, prefetch=8)
            held, acknowledged = [], []
            for number in range(12):
                delivery = deliveries.get(30)
                assert delivery is not None
                if number % 2:
                    delivery.ack()
                    acknowledged.append(number_of(delivery))
                else:
                    held.append(number_of(delivery))
            deliveries.flush()
            assert not set(acknowledged) & set(done)
            assert sorted([*held, *acknowledged]) == sorted(set(range(PUSHED)) - set(done))[:12]
            done += acknowledged
            # The consumer dies with what it holds.
            deliveries.abort()
            kill()
            assert len(done) == 6 * (turn + 1)
    with node.connect() as client:
        rest = take(client, "killed", PUSHED - len(done))
        assert rest == sorted(set(range(PUSHED)) - set(done))
        assert info_of(client, "killed").acked
        client.unsubscribe("killed", topic="wide")


def test_consumers_share_the_archived_part_and_resolve_as_ever(node: ClientNode) -> None:
    terms = SubscribeOptions(start=beginning(), prefetch=4, lease=None, max_deliveries=2, exhausted="drop")
    with node.connect() as client, node.connect() as other:
        with (
            client.subscribe("shared", topic="wide", **terms) as one,
            other.subscribe("shared", topic="wide", **terms) as two,
        ):
            first, second = one.get(20), two.get(20)
            assert first is not None
            assert second is not None
            assert first.bundle_id != second.bundle_id
            deferred, token = first.bundle_id, first.token
            first.defer(0.05)
            second.reject()
            claimed = one.claim(BundleId("wide", 0, 3, 0))
            assert claimed.delivery_count == 1
            found: list[BundleId] = []
            while len(found) < PUSHED - 3 or deferred == first.bundle_id:
                for deliveries in (one, two):
                    delivery = deliveries.get(0.1)
                    if delivery is None:
                        continue
                    if delivery.bundle_id == deferred and delivery.delivery_count == 2:
                        assert delivery.token > token
                        delivery.defer()
                        deferred = BundleId("wide", 0, 1 << 40, 0)
                        continue
                    found.append(delivery.bundle_id)
                    delivery.ack()
            assert len(set(found)) == len(found)
            assert one.flush() == two.flush() == []
            # One was rejected, one dropped after its second delivery, and one is held.
            assert one.pending_count() == 1
            with pytest.raises(UsageError, match="still gets bundles from the archive"):
                client.seek("shared", LONG_AGO, topic="wide")
        client.unsubscribe("shared", topic="wide")


def test_a_dead_letter_of_an_archived_bundle_is_kept_for_a_claim(node: ClientNode) -> None:
    with node.connect() as client:
        with client.subscribe("picky", topic="wide", start=beginning(), max_deliveries=1) as deliveries:
            delivery = deliveries.get(20)
            assert delivery is not None
            delivery.defer()
            wait_until(lambda: info_of(client, "picky").blocked == 1, "it is set aside")
            with deliveries.claim(delivery.bundle_id) as again:
                assert number_of(again) == 0
        client.unsubscribe("picky", topic="wide")


def test_who_cannot_read_the_archive_is_refused_by_name(node: ClientNode) -> None:
    with node.connect() as client:
        assert take(client, "begun", 3, start=beginning()) == [0, 1, 2]
        with pytest.raises(UsageError, match="still gets bundles from the archive"):
            client.hold("begun", topic="wide").look()
        assert take(client, "begun", PUSHED - 3) == list(range(3, PUSHED))
        # Nothing of it is in the archive any more.
        hold = client.hold("begun", topic="wide")
        hold.look()
        hold.close()
        client.unsubscribe("begun", topic="wide")


def test_what_expires_on_the_disk_before_a_subscriber_has_it_comes_from_the_archive(node: ClientNode) -> None:
    """The worker is killed on the way; a consumer that has mapped files goes on with them or with the archive."""
    gaps: list[GapNotice] = []
    with node.connect() as client:
        client.create_topic(
            "aged", {"retention.max_age": "1s", "archive.require": True, "slots": {"page": 0, "view": 1}}
        )
        found: list[int] = []
        with client.subscribe("slow", topic="aged", start="earliest", prefetch=2, on_gap=gaps.append) as deliveries:
            for number in range(15):
                client.push(bundle(number), topic="aged")
            client.flush("aged", until="archived")
            held = [deliveries.get(20) for _ in range(2)]
            wait_until(lambda: len(client.segments("aged")[0]) <= 1, "what nobody holds has expired", 60)
            for delivery in held:
                assert delivery is not None
                with delivery:
                    found.append(number_of(delivery))
            deliveries.flush()
        node.kill_worker(0)
        with client.subscribe("slow", topic="aged", on_gap=gaps.append) as deliveries:
            while not deliveries.all_drained():
                delivery = deliveries.get(1)
                with delivery or contextlib.nullcontext():
                    found += [number_of(delivery)] if delivery is not None else []
        assert found == list(range(15))
        assert gaps == []
        client.delete_topic("aged")


def test_asyncio_begins_in_the_archive(node: ClientNode) -> None:
    async def consume() -> None:
        async with aio.connect(str(node.directories.run)) as client:
            deliveries = await client.subscribe("later", topic="wide", start=beginning(), prefetch=8)
            found = [number_of(await one(deliveries)) for _ in range(2)]
            cancelled = asyncio.ensure_future(deliveries.get(20))
            await asyncio.sleep(0)
            cancelled.cancel()
            assert isinstance((await asyncio.gather(cancelled, return_exceptions=True))[0], asyncio.CancelledError)
            for pause_seconds in (0.0, 0.001, 0.002, 0.004):
                many = asyncio.ensure_future(deliveries.get_many(3, 20))
                await asyncio.wait([many], timeout=pause_seconds)
                many.cancel()
                (outcome,) = await asyncio.gather(many, return_exceptions=True)
                found += map(number_of, outcome) if isinstance(outcome, list) else []
            found += [number_of(delivery) for delivery in await deliveries.get_many(3, 20)]
            assert found == list(range(len(found)))
            with await deliveries.claim(BundleId("wide", 0, 4, 0)) as claimed:
                assert claimed.is_archived
            await deliveries.close()
            async with await client.subscribe("later", topic="wide") as deliveries:
                numbers: list[int] = []
                async for batch in deliveries.batches(max_rows=2000, max_wait=0.05):
                    with batch:
                        numbers += batch["view"].column(0).unique().to_pylist()
                    if len(numbers) == PUSHED - 1:
                        break
                assert sorted({*numbers, number_of(claimed)}) == list(range(PUSHED))
                await deliveries.flush()
                assert await deliveries.all_drained()

    async def one(deliveries: aio.Subscription) -> aio.Delivery:
        delivery = await deliveries.get(20)
        assert delivery is not None
        return delivery

    asyncio.run(consume())
    with node.connect() as client:
        client.unsubscribe("later", topic="wide")


def archived_objects(place: Path) -> list[Path]:
    """The archived segments of the topic, oldest first."""
    return sorted(place.glob("archive/anode/wide/*/core_0/*.qseg"))


def test_what_the_archive_cannot_give_is_set_aside_or_told_and_the_rest_is_delivered(tmp_path: Path) -> None:
    """One object is missing and one is damaged: both may be mended. What has left the archive by its age never comes."""
    with archiving_node(f"file://{tmp_path}/archive", MORE) as node, node.connect() as client:
        push(client, 60)
        wait_until(lambda: first_on_disk(client) > 5, "archived segments have left the disk", 180)
        whole = [each.bundle_id for each in client.read("wide", 0, beginning())]
        assert take(client, "slow", 1) == [0]
        objects = archived_objects(tmp_path)
        objects[1].unlink()
        content = bytearray(objects[2].read_bytes())
        content[len(content) // 2] ^= 1
        objects[2].write_bytes(content)
        gaps: list[GapNotice] = []
        done: list[BundleId] = []
        with client.subscribe("late", topic="wide", start=0, on_gap=gaps.append) as deliveries:
            wanted = {bundle_id for bundle_id in whole if bundle_id.segment_seq not in (1, 2)}
            while not wanted <= set(done) or not info_of(client, "late").blocked:
                delivery = deliveries.get(1)
                with contextlib.suppress(FormatError), delivery or contextlib.nullcontext():
                    assert delivery is None or delivery.slots
                    done += [delivery.bundle_id] if delivery is not None else []
            assert deliveries.flush() == []
        assert len(set(done)) == len(done)
        assert gaps == []
        assert main(["archive", "expire", "--archive", f"file://{tmp_path}/archive", "--node", "anode", *NOW]) == 0
        first = first_on_disk(client)
        for each in archived_objects(tmp_path)[: first - 1]:
            # As the archiver does about an hour later.
            each.unlink(missing_ok=True)
            each.with_suffix(".qseg.crc").unlink(missing_ok=True)
        with client.subscribe("slow", topic="wide", on_gap=gaps.append) as deliveries:
            last: list[BundleId] = []
            while not deliveries.all_drained():
                delivery = deliveries.get(1)
                with contextlib.suppress(DataLost, FormatError, NotStored), delivery or contextlib.nullcontext():
                    assert delivery is None or delivery.slots
                    last += [delivery.bundle_id] if delivery is not None else []
        assert [each for each in whole if each.segment_seq >= first] == [
            each for each in last if each.segment_seq >= first
        ]
        told = {
            (gap.segment_seq, index)
            for gap in gaps
            for index in range(gap.bundle_index_first, gap.bundle_index_last + 1)
        }
        assert told | {each[2:] for each in last} == {each[2:] for each in whole[1:]}
        assert {gap.reason for gap in gaps} == {"expired"}


def test_a_start_holds_for_all_cores(tmp_path: Path) -> None:
    with (
        client_node(config=CONFIG.format(url=f"file://{tmp_path}/archive") + MORE, cores=2) as node,
        node.connect() as client,
    ):
        ids_of: dict[int, list[BundleId]] = {0: [], 1: []}
        for number in range(80):
            bundle_id = client.push(bundle(number), topic="wide", key=str(number)).bundle_id
            ids_of[bundle_id.core].append(bundle_id)
        assert min(map(len, ids_of.values())) > 20
        wait_until(
            lambda: all(found and found[0].segment_seq > 2 for found in client.segments("wide").values()),
            "both archive",
            60,
        )
        begun = ids_of[0][4]
        since = next(client.read("wide", 0, begun)).ingestion_unix_ns
        later = [
            each.bundle_id
            for each in client.read("wide", 1, BundleId("wide", 1, 0, 0))
            if (each.ingestion_unix_ns or 0) >= (since or 0)
        ]
        wanted = {0: ids_of[0][4:], 1: later}
        assert 0 < len(later) < len(ids_of[1])
        for start in (begun, since):
            assert start is not None
            found: dict[int, list[BundleId]] = {0: [], 1: []}
            with client.subscribe(f"late-{type(start).__name__}", topic="wide", start=start) as deliveries:
                for _ in range(len(wanted[0]) + len(wanted[1])):
                    delivery = deliveries.get(30)
                    assert delivery is not None
                    with delivery:
                        found[delivery.bundle_id.core].append(delivery.bundle_id)
                assert found == wanted
                deliveries.flush()
                assert deliveries.all_drained()


def test_a_client_on_another_host_begins_in_the_archive(node: ClientNode, tmp_path: Path) -> None:
    served = Served(node, tmp_path)
    try:
        with served.connect() as remote, node.connect() as client:
            with remote.subscribe("afar", topic="wide", start=0) as deliveries:
                found = []
                for _ in range(30):
                    delivery = deliveries.get(30)
                    assert delivery is not None
                    with delivery:
                        found.append(delivery["view"].column(0)[0].as_py())
                assert found == list(range(30))
            client.unsubscribe("afar", topic="wide")
    finally:
        served.kill()
