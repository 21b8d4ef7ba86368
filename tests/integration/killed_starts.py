"""Starts of a node where one was killed before, each killed one step later than the one before, until the first worker would be forked.

    python -m tests.integration.killed_starts DATA_DIR RUN_DIR OTHER_RUN_DIR

After each of them another node of the same user sweeps, and somebody asks for the status. Prints a line for each: `figures`, or what the
status says instead. Runs in its own process, with one thread, as a supervisor must.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from types import FrameType

from quiver_actors.base.config import NodeSettings, TopicSettings
from quiver_actors.errors import NotRunning
from quiver_actors.node import composition, leftovers
from quiver_actors.store.status import status_view
from quiver_actors.supervisor import loop

MODULES = frozenset(module.__file__ for module in (composition, leftovers, loop))
"""A call of something else in one of these modules is a step."""
WHOLE = 7
"""Exit code of a start that came as far as the fork."""


class Killer:
    """Kills its process in front of a step; 0: never. Ends it in front of the first fork."""

    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self, frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and called is os.fork:
            os._exit(WHOLE)
        if event != "c_call" or frame.f_code.co_filename not in MODULES:
            return
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def start(settings: NodeSettings, step: int) -> bool:
    """Start a node, and kill it in front of that step; whether it came as far as the fork."""
    pid = os.fork()
    if not pid:
        sys.setprofile(Killer(step))
        composition.run_node(settings)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (WHOLE, -signal.SIGKILL), f"a start ended with {ended}"
    return ended == WHOLE


def told(run_dir: str) -> str:
    """Return what the status says of a node; `figures` if it has some."""
    try:
        status_view.take_status(run_dir)
    except NotRunning as error:
        return str(error)
    return "figures"


def main(data_dir: str, run_dir: str, other_run_dir: str) -> None:
    settings = NodeSettings(
        data_dir=data_dir, run_dir=run_dir, cores=1, topics={"default": TopicSettings(name="default")}
    )
    for step in count(1):
        assert start(settings, 0)
        is_whole = start(settings, step)
        leftovers.sweep(other_run_dir)
        print(told(run_dir), flush=True)
        if is_whole:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
