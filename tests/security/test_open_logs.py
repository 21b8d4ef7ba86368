"""Another user who reads bundles of logs that are still written: it can read them, and change nothing."""

from __future__ import annotations

import fcntl
import mmap
import os

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client import connect
from quiver_actors.store.engine import held_files
from tests.integration.client_node import client_node, first_id, numbers, take
from tests.security.guest import AS_ROOT, GUEST_UID, Besieged, as_user, besieged
from tests.unit.node.worker.harness import table, until

TOPIC = "open"
CONFIG = f"""
[segment]
max_open_duration = "1h"
[access]
group = "nogroup"
[topics.open]
allowed_uids = [{GUEST_UID}]
"""


def try_to_change(descriptor: int) -> None:
    """Everything that could change the file behind a descriptor is refused."""
    path = f"/proc/self/fd/{descriptor}"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(descriptor, b"x", 100)
    with pytest.raises(OSError, match=r"Invalid argument|Bad file descriptor"):
        os.ftruncate(descriptor, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.fchmod(descriptor, 0o666)
    with pytest.raises(PermissionError):
        os.close(os.open(path, os.O_RDWR))
    with pytest.raises(OSError, match=r"Bad file descriptor|not permitted"):
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@AS_ROOT
def test_another_user_reads_unsealed_bundles_and_cannot_write_their_file() -> None:
    with besieged() as node:
        guest = node.guest()
        guest.register("shared", topic=TOPIC, credit=10)
        node.honest.push_and_wait(table(7), topic=TOPIC)
        opened = guest.expect(m.SegmentOpened)
        assert not opened.is_sealed
        with as_user(GUEST_UID, 65534):
            try_to_change(guest.descriptors[0])
        guest.open_received(opened)
        assert [values for _, _, values in guest.values(1)] == [[7]]
        node.honest.push_and_wait(table(8), topic=TOPIC)
        assert [values for _, _, values in guest.values(1)] == [[8]], "the descriptor comes once"
        assert not guest.descriptors


@AS_ROOT
def test_logs_that_another_user_keeps_are_emptied_once_they_are_deleted_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same rule holds for descriptors of sealed segments; see test_held_segments."""
    monkeypatch.setattr(held_files, "GRACE_NS", 0)
    monkeypatch.setattr(held_files, "LOOK_INTERVAL_NS", MILLISECOND_NS)
    with besieged() as node:
        node.honest.register("reader", topic=TOPIC, credit=10)
        node.honest.push_and_wait(table(7), topic=TOPIC)
        guest = node.guest()
        guest.send(m.OpenSegment(7, TOPIC, 0, 0, 1))
        opened = guest.expect(m.SegmentOpened)
        assert not opened.is_sealed
        kept = guest.descriptors.popleft()
        ((deliver, index, _),) = node.honest.values(1, "reader")
        node.honest.flush(TOPIC)
        content = os.pread(kept, 1 << 26, 0)
        assert content.rstrip(b"\0")
        hoard = mmap.mmap(kept, len(content), prot=mmap.PROT_READ)
        os.close(kept)
        node.honest.resolve(deliver, [index])
        node.honest.flush_progress("reader", TOPIC)
        until(lambda: segments_of(node) == [], "the segment to be deleted")
        assert hoard[:] == content, "what a reader of the own user maps is never emptied"
        node.honest.segments.clear()
        until(lambda: hoard[:] == bytes(len(content)), "blocks that only another user holds to be taken back")
        hoard.close()


def segments_of(node: Besieged) -> list[str]:
    return [path.name for path in (node.worker.data_dir / TOPIC / "core_0" / "segments").iterdir()]


@AS_ROOT
def test_a_client_of_another_user_consumes_unsealed_bundles() -> None:
    with client_node(config=CONFIG) as node, node.connect() as owner:
        node.directories.base.chmod(0o711)
        with as_user(GUEST_UID, 65534), connect(node.directories.run, timeout=60) as guest:
            with guest.subscribe("g", topic=TOPIC) as deliveries:
                guest.push(numbers(1), topic=TOPIC)
                (delivery,) = take(deliveries, 1)
                assert first_id(delivery) == 1
                delivery.ack().wait()
                assert deliveries.all_drained()
            assert guest.segments(TOPIC) == {0: []}
        assert owner.segments(TOPIC) == {0: []}
