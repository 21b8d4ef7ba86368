"""A push that is interrupted while its caller handles an error: what the caller handles is no error of the disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quiver_actors.embedded.worker import CommitThread
from quiver_actors.errors import DiskError, DurabilityUnknown, QuiverError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.commits import CommitJob
from tests.unit.embedded.batches import PATIENCE_SECONDS
from tests.unit.embedded.interrupts import Interrupt


@pytest.fixture
def commits() -> Iterator[CommitThread]:
    thread = CommitThread("quiver-sync", lambda: thread.finish_jobs())  # noqa: PLW0108 - it is bound by the time of the call
    yield thread
    assert thread.stop(PATIENCE_SECONDS)


def _broken_off(error: OSError | None) -> None:
    """Stand for a sync whose error, if it has one, is being handled as the interrupt comes."""
    try:
        if error is not None:
            raise error
    except OSError:
        raise Interrupt from None
    raise Interrupt


def given_back(commits: CommitThread, disk: PosixDisk, error: OSError | None) -> QuiverError | None:
    """Interrupt a commit that this thread has taken; the error that it comes back with."""
    is_back = threading.Event()
    job = CommitJob(disk, EnginePaths("topic/core_0"), ())
    commits.take_lone(job, is_back.set)
    try:
        _broken_off(error)
    except Interrupt as interrupt:
        commits.give_back(interrupt)
    if error is None:
        assert is_back.wait(PATIENCE_SECONDS), "the thread does it again"
    return job.error


HANDLED: list[Callable[[], Exception]] = [
    lambda: FileNotFoundError(errno.ENOENT, "the caller's own"),
    lambda: DurabilityUnknown("of a push before"),
]


@pytest.mark.parametrize("handled", HANDLED)
def test_what_the_caller_handles_is_not_taken_for_the_error_of_a_sync(
    commits: CommitThread, tmp_path: Path, handled: Callable[[], Exception]
) -> None:
    """Regression: the store gave up its memory and recovered, and pushes under way did not know whether they were stored."""
    disk = PosixDisk(str(tmp_path))
    try:
        raise handled()
    except (OSError, QuiverError):
        assert given_back(commits, disk, None) is None
        lost = given_back(commits, disk, OSError(errno.EIO, "of the disk"))
    assert isinstance(lost, DiskError)
    assert lost.errno == errno.EIO
    disk.close()
