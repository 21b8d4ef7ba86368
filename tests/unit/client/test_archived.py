"""What a client may conclude from the archiver's account of itself."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import quiver_actors
from quiver_actors.aio.archived import awaiting_archived
from quiver_actors.base.archive_status import ARCHIVE_STATUS_FILE, ArchivedStream, ArchiveStatus, read_archive_status
from quiver_actors.base.model import BundleId
from quiver_actors.client.archived import NotArchived, Wanted, await_archived, check_until, is_archived, wanted_of
from quiver_actors.errors import UsageError
from tests.integration.client_node import numbers

STREAM = ArchivedStream(
    topic="clicks",
    core=0,
    incarnation="17",
    archived_through=9,
    known_from=2,
    runs=((3, 4), (7, 9)),
    holes=((4, 2, 2, "damaged"), (5, 0, 0, "evicted")),
)
STATUS = ArchiveStatus(url="s3://bucket", state="archiving", streams=(STREAM,))


def wanted(segment_seq: int, index: int = 0, incarnation: str = "17") -> Wanted:
    return Wanted("clicks", 0, incarnation, ((segment_seq, index, index + 1),))


@pytest.mark.parametrize("place", [(3, 0), (4, 0), (4, 1), (4, 4), (7, 5), (9, 0)])
def test_bundles_of_archived_segments_are_archived(place: tuple[int, int]) -> None:
    assert is_archived(STATUS, wanted(*place))


def test_what_is_to_come_of_another_directory_or_unknown_is_not_yet() -> None:
    assert not is_archived(STATUS, wanted(10))
    assert not is_archived(STATUS, wanted(3, incarnation="18")), "equal numbers of another directory are other segments"
    assert not is_archived(STATUS, Wanted("views", 0, "17", ((3, 0, 1),)))
    assert not is_archived(None, wanted(3))


@pytest.mark.parametrize(
    ("place", "why"),
    [((4, 2), "damaged"), ((4, 3), "damaged"), ((5, 9), "evicted"), ((6, 0), "gone before"), ((1, 0), "older")],
)
def test_what_never_will_be_archived_is_told_with_its_reason(place: tuple[int, int], why: str) -> None:
    with pytest.raises(NotArchived, match=why):
        is_archived(STATUS, wanted(*place))


def test_a_hole_in_the_middle_of_a_run_of_bundles_is_told() -> None:
    assert is_archived(STATUS, Wanted("clicks", 0, "17", ((4, 0, 2), (4, 4, 9))))
    with pytest.raises(NotArchived, match=r"bundles 0 to 8 of segment 4.*damaged"):
        is_archived(STATUS, Wanted("clicks", 0, "17", ((4, 0, 9),)))


def test_everything_through_a_segment_counts_holes_as_done() -> None:
    assert is_archived(STATUS, Wanted("clicks", 0, "17", through=9))
    assert not is_archived(STATUS, Wanted("clicks", 0, "17", through=10))


def test_a_prepared_stage_is_archived_when_the_archiver_says_so() -> None:
    status = msgspec.structs.replace(STATUS, streams=(msgspec.structs.replace(STREAM, stages=(3, 5)),))
    assert is_archived(status, Wanted("clicks", 0, "17", stages=(5,)))
    assert not is_archived(status, Wanted("clicks", 0, "17", stages=(4,)))
    assert not is_archived(status, Wanted("clicks", 0, "18", stages=(5,)))
    assert not is_archived(STATUS, Wanted("clicks", 0, "17", stages=(5,)))


def test_ids_are_gathered_by_topic_and_core() -> None:
    ids = [BundleId("clicks", 1, 4, 0), BundleId("clicks", 0, 3, 1), BundleId("clicks", 1, 4, 0)]
    assert sorted(wanted_of(ids, {0: "17"})) == [
        Wanted("clicks", 0, "17", ((3, 1, 2),)),
        Wanted("clicks", 1, "", ((4, 0, 1),)),
    ]


def test_the_timeout_says_why(tmp_path: Path) -> None:
    run_dir = str(tmp_path)
    with pytest.raises(NotArchived, match="no archiver"):
        await_archived(run_dir, [wanted(10)], 0)
    for change, why in (
        ({}, "behind by"),
        ({"streams": ()}, r"archive\.enabled"),
        ({"state": "waiting", "error": "timed out"}, "waiting: timed out"),
    ):
        content = msgspec.json.encode(msgspec.structs.replace(STATUS, **change))
        (tmp_path / ARCHIVE_STATUS_FILE).write_bytes(content)
        with pytest.raises(NotArchived, match=why):
            await_archived(run_dir, [wanted(10)], 0)


@pytest.mark.parametrize("timeout", [math.nan, math.inf, "60"])
def test_a_timeout_that_is_no_number_of_seconds_does_not_wait_for_ever(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(UsageError, match="is not possible"):
        await_archived(str(tmp_path), [wanted(10)], timeout)


def test_tasks_that_wait_keep_no_thread_and_let_go_when_they_are_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = [asyncio.create_task(awaiting_archived(str(tmp_path), [wanted(9)], 600)) for _ in range(3)]
        assert await asyncio.wait_for(asyncio.to_thread(int), 60) == 0
        waiting[0].cancel()
        (tmp_path / ARCHIVE_STATUS_FILE).write_bytes(msgspec.json.encode(STATUS))
        found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == [None, None]
        with pytest.raises(NotArchived):
            await awaiting_archived(str(tmp_path), [wanted(10)], 0)

    asyncio.run(main())


def test_a_status_of_another_version_or_a_damaged_one_says_nothing(tmp_path: Path) -> None:
    assert read_archive_status(str(tmp_path)) is None
    newer = msgspec.structs.replace(STATUS, version=2)
    for content in (b"", b"{", b'"\xff"', msgspec.json.encode(newer)):
        (tmp_path / ARCHIVE_STATUS_FILE).write_bytes(content)
        assert read_archive_status(str(tmp_path)) is None


def test_a_store_in_this_process_refuses_by_name(tmp_path: Path) -> None:
    with quiver_actors.open(tmp_path / "data") as store:
        receipt = store.push(numbers(1))
        with pytest.raises(UsageError, match="no archiver"):
            store.wait_archived([receipt])
        with pytest.raises(UsageError, match="no archiver"):
            store.flush(until="archived")
        with pytest.raises(UsageError, match="tomorrow"):
            store.flush(until="tomorrow")
        with store.stage("t") as stage:
            stage.push(numbers(2))
            with pytest.raises(UsageError, match="no archiver"):
                stage.prepare(until="archived")
            assert stage.prepare() is not None, "it was still open"
    with pytest.raises(UsageError):
        check_until("")
