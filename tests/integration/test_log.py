"""What a node says in its log while bundles come, are sealed, read and deleted: stable names."""

from __future__ import annotations

from tests.integration.client_node import CONFIG, client_node, numbers, take

WANTED = {
    "quiver.node.start",
    "quiver.node.ready",
    "quiver.worker.start",
    "quiver.worker.ready",
    "quiver.engine.init",
    "quiver.subscriber.register",
    "quiver.wal.init",
    "quiver.wal.rotate",
    "quiver.segment.flush",
    "quiver.subscriber.progress.flush",
    "quiver.segment.drop",
    "quiver.subscriber.unregister",
    "quiver.topic.create",
    "quiver.topic.deleted",
    "quiver.node.drain",
    "quiver.node.end",
}


def test_events_of_a_bundles_life_have_stable_names() -> None:
    with client_node(config=CONFIG.replace("[segment]", '[log]\nlevel = "debug"\n[segment]', 1)) as node:
        with node.connect() as client:
            with client.subscribe("reader") as subscription:
                client.push(numbers(1))
                for delivery in take(subscription, 1):
                    delivery.ack()
                subscription.flush()
            node.process.wait_for("segment.drop", "topic=default")
            client.unsubscribe("reader")
            client.create_topic("short")
            client.delete_topic("short")
        assert node.process.stop() == 0
        events = {line.partition("event=")[2].split(" ")[0] for line in node.process.lines}
    assert WANTED - events == set()
