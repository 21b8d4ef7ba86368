"""Where the commits of lone pushes are carried out: on the sync thread, or by the loop itself while that is quicker and harms nobody.

Owner: the worker, on the loop thread. A sync in the loop saves two wake-ups of a push, and nothing else happens in the worker meanwhile. So
the loop syncs only while three things hold: the disk has answered the last `QUICK_COMMITS` commits within `QUICK_NS`, all of them were of
lone pushes, and nothing waits to be read. One slow answer, another commit, or anything that arrives during a sync gives the next commits
back to the thread.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from functools import partial

from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.node.worker.threads import Finished, JobThread
from quiver_actors.store.jobs.commits import LoneCommit

CarryOut = Callable[[LoneCommit, Finished], None]
"""Have a commit carried out. `finished` is called on the loop thread when it is done: before this returns, or later."""
QUICK_NS = MILLISECOND_NS
"""Longest sync that the loop may wait for."""
QUICK_COMMITS = 100
"""How many commits in a row must have been quick, so that none of them was beyond the 99th percentile."""


def input_of(poll: select.epoll) -> Callable[[], object]:
    """Return what says whether that poll would find something now.

    It looks at the poll from outside: an edge that it sees, such as the wake-up of a thread, is still there for the loop.
    """
    looking = select.poll()
    looking.register(poll, select.POLLIN)
    return partial(looking.poll, 0)


class LoneSyncs:
    """Carries out the commits of lone pushes of one worker."""

    def __init__(
        self,
        thread: JobThread,
        has_input: Callable[[], object],
        *,
        quick_commits: int = QUICK_COMMITS,
        quick_ns: int = QUICK_NS,
    ) -> None:
        """
        Args:
            thread: the sync thread.
            has_input: whether the loop would find something to read now. It must leave to the loop what it sees.
        """
        self._thread = thread
        self._has_input = has_input
        self._quick_commits = quick_commits
        self._quick_ns = quick_ns
        self._count = 0
        """Number of quick commits in a row."""
        self._submissions = 0
        """Number of jobs that the thread had been given after the last of them."""

    def carry_out(self, commit: LoneCommit, finished: Finished) -> None:
        """Sync in the loop, or have the thread do it.

        Args:
            commit: its `took_ns` is still that of the time before.
        """
        thread = self._thread
        is_quick = commit.took_ns <= self._quick_ns and thread.submissions == self._submissions
        self._count = self._count + 1 if is_quick else 0
        if self._count < self._quick_commits or self._has_input():
            thread.submit(commit, finished)
        else:
            commit.run()
            if self._has_input():
                self._count = 0
            if commit.error is None:
                finished()
            else:
                # What a failure calls for happens between turns, as with all jobs. To sync once more would hide it.
                thread.submit(_Done(), finished)
        self._submissions = thread.submissions


class _Done:
    """A job that has been carried out already."""

    def run(self) -> None:
        """Do nothing: the work was done when the job was made."""
