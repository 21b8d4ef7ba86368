"""The losses that a restore tells of, by what the state and the manifest say."""

from __future__ import annotations

import uuid

import msgspec
import pytest

from quiver_actors.archive.manifest import StreamRef
from quiver_actors.archive.node_state import EngineState, KnownSegment
from quiver_actors.archive.restoring.plan import Loss, plan_engine
from quiver_actors.store.objects.opening import open_store
from tests.unit.archive.test_manifest_store import own

STATE = EngineState(
    topic="topic", core=0, directory="topic/core_0", incarnation="17", files={}, on_disk=((3, 5),), next_segment_seq=6
)
END = Loss(6, 0, is_sealed=False)


@pytest.mark.parametrize(
    ("through", "unarchived", "losses"),
    [
        # Archived, and expired there while the disk still had them: they are lost, and so may be what came after the state.
        (5, (), [*(Loss(number, 0, is_sealed=True) for number in (3, 4, 5)), END]),
        (
            4,
            (KnownSegment(5, 7, True),),
            [Loss(3, 0, is_sealed=True), Loss(4, 0, is_sealed=True), Loss(5, 7, is_sealed=True), END],
        ),
        # The last segment was sealed after the worker told of it: nobody knows how many bundles it had.
        (4, (), [Loss(number, 0, is_sealed=True) for number in (3, 4, 5)]),
    ],
)
def test_what_may_have_come_after_the_state_is_always_told(
    through: int, unarchived: tuple[KnownSegment, ...], losses: list[Loss]
) -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    expired = StreamRef(topic="topic", incarnation="17", core=0, archived_through=through, expired_through=through)
    head = msgspec.structs.replace(own(store).head, streams=(expired,))
    plan = plan_engine(store, head, msgspec.structs.replace(STATE, unarchived=unarchived), is_own=False)
    assert plan.losses == losses
