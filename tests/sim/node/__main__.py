"""Whole nodes, simulated: `python -m tests.sim.node --seed N --steps M`, or `--seeds FIRST:END` for many.

A failing seed is run again without each of its actors and each of its faults, as long as it still fails; what is left of its events is
printed, and the command that replays it. The last line of many seeds is one JSON object: seeds, steps, failures, and what happened in
them, counted.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import shlex
import sys
from collections import Counter
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING

from tests.sim.node import simulated_time

if TYPE_CHECKING:
    from tests.sim.node.run import RunFailed

_EVENTS_SHOWN = 120
_CAUSES_SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.node")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:10", help="FIRST:END")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--without", default="", help="numbers of faults and names of actors that are left out")
    parser.add_argument(
        "--first-failure", action="store_true", help="stop there, without looking for what matters in it"
    )
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    campaign = Campaign(arguments.steps, shrinks=not arguments.first_failure)
    first, _, end = arguments.seeds.partition(":")
    if arguments.seed is not None:
        campaign.run(arguments.seed, [_number_or_name(each) for each in arguments.without.split(",") if each])
    else:
        for seed in range(int(first), int(end)):
            campaign.run(seed)
            if campaign.failures and arguments.first_failure:
                break
    print(json.dumps(campaign.figures()))
    return bool(campaign.failures)


@cache
def _spare_the_collector() -> None:
    """What the first run has imported stays: the end of a run looks for garbage, and need not go through all of that."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


def _number_or_name(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


class Campaign:
    """Many runs, one after the other."""

    def __init__(self, steps: int, *, shrinks: bool) -> None:
        self.failures: list[int] = []
        self._time = simulated_time.install()
        self._steps = steps
        self._shrinks = shrinks
        self._seeds = 0
        self._counts: Counter[str] = Counter()

    def figures(self) -> dict[str, object]:
        found = {"seeds": self._seeds, "steps": self._seeds * self._steps, "failures": self.failures}
        return found | dict(sorted(self._counts.items()))

    def run(self, seed: int, without: Collection[int | str] = ()) -> None:
        """One seed; a failure is printed."""
        self._seeds += 1
        found = self._failure(seed, without)
        if found is not None:
            self.failures.append(seed)
            self._print(seed, *self._shrunk(seed, found, tuple(without)))

    def _failure(self, seed: int, without: Collection[int | str]) -> RunFailed | None:
        from tests.sim.node.run import RunFailed, run_seed

        try:
            run_seed(self._time, seed, self._steps, without, self._counts)
            _spare_the_collector()
        except RunFailed as failed:
            return failed.with_traceback(None)
        return None

    def _shrunk(
        self, seed: int, found: RunFailed, without: tuple[int | str, ...]
    ) -> tuple[RunFailed, tuple[int | str, ...]]:
        """Return the same failure with fewer steps. A run that fails in another way counts too: it is a failure."""
        if self._shrinks:
            for part in (*found.actors, *range(1, found.faults + 1)):
                less = self._failure(seed, (*without, part)) if part not in without else None
                if less is not None:
                    found, without = less, (*without, part)
        return found, without

    def _print(self, seed: int, found: RunFailed, without: tuple[int | str, ...]) -> None:
        causes = [line for line in found.log if line.startswith("fault ")]
        print(f"seed {seed} fails, also without {', '.join(map(str, without)) or 'anything left out'}")
        print("\n".join([*causes[-_CAUSES_SHOWN:], "...", *found.log[-_EVENTS_SHOWN:]]))
        print(found.reason)
        left_out = ["--without", ",".join(map(str, without))] if without else []
        replay = ["python", "-m", "tests.sim.node", "--seed", str(seed), "--steps", str(self._steps), *left_out]
        print(f"alone: PYTHONHASHSEED=0 {shlex.join(replay)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
