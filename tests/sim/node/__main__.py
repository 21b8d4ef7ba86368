"""Whole nodes, simulated: `python -m tests.sim.node --seed N --steps M`, or `--seeds FIRST:END` for many.

A failing seed is run again without each of its faults, as long as it still fails; what is left, and the last events, are printed.
The last line of many seeds is one JSON object: seeds, steps, failures.
"""

from __future__ import annotations

import argparse
import json
import sys

from tests.sim.node import simulated_time

_EVENTS_SHOWN = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.node")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:10", help="FIRST:END")
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    time = simulated_time.install()
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end)) if arguments.seed is None else [arguments.seed]
    failures = [seed for seed in seeds if not _passes(time, seed, arguments.steps)]
    print(json.dumps({"seeds": len(seeds), "steps": len(seeds) * arguments.steps, "failures": failures}))
    return bool(failures)


def _passes(time: simulated_time.SimulatedTime, seed: int, steps: int) -> bool:
    from tests.sim.node.run import RunFailed, run_seed

    def failure(without: frozenset[int]) -> RunFailed | None:
        try:
            run_seed(time, seed, steps, without)
        except RunFailed as failed:
            return failed.with_traceback(None)
        return None

    found = failure(frozenset())
    if found is None:
        return True
    without: frozenset[int] = frozenset()
    for number in range(1, found.faults + 1):
        less = failure(without | {number})
        if less is not None:
            without, found = without | {number}, less
    print(f"seed {seed} fails, also without the faults {sorted(without)}:")
    print("\n".join(found.log[-_EVENTS_SHOWN:]))
    print(found.reason, flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
