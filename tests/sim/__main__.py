"""`python -m tests.sim`: the crash and error sweeps, as many states as asked for, and what they came to.

    python -m tests.sim --report                          as `make test` does; the last line is JSON
    python -m tests.sim --report --crash-states 1000000   for a night
    python -m tests.sim --report --quick                  for a look
    python -m tests.sim --seed N --steps M                one run of a whole simulated node: `tests.sim.node`

The first broken rule ends it, with what is needed to see it again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.sim.report import STATES_DEFAULT, Effort, run_all

if TYPE_CHECKING:
    from tests.evidence import Evidence

QUICK_STATES = 1_500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Crash and error sweeps of the engine.")
    parser.add_argument("--crash-states", type=int, default=STATES_DEFAULT, help="distinct disks that crashes leave")
    parser.add_argument("--seed", type=int, default=0, help="first seed of the runs")
    parser.add_argument("--steps", type=int, default=0, help="of a whole simulated node, of that seed alone")
    parser.add_argument(
        "--report", action="store_true", help="the other suites too (tests.evidence), and one line of JSON"
    )
    parser.add_argument("--quick", action="store_true", help=f"for a look: {QUICK_STATES} states, nothing else")
    parser.add_argument("--processes", type=int, default=0, help="how many, 0 for one for each CPU")
    parser.add_argument("--images", type=Path, help="file for the 64-bit hashes of the distinct states")
    parser.add_argument("--crashes-only", action="store_true", help="no errors, no damaged directories")
    parser.add_argument(
        "--all-errors", action="store_true", help="every call with every errno, as where there are more states"
    )
    parser.add_argument("--alone", action="store_true", help="only what needs nothing but the simulated disk")
    arguments = parser.parse_args()
    if arguments.steps:
        # In a process of its own: time is replaced in it before anything else is imported.
        node = ["-m", "tests.sim.node", "--seed", str(arguments.seed), "--steps", str(arguments.steps)]
        os.execve(sys.executable, [sys.executable, *node], os.environ | {"PYTHONHASHSEED": "0"})
    if arguments.quick:
        arguments.crash_states, arguments.alone = QUICK_STATES, True
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    try:
        effort = Effort(arguments.crash_states, arguments.seed, arguments.all_errors)
        report = run_all(effort, arguments.processes, crashes_only=arguments.crashes_only)
        print(f"# crash and error sweeps: {time.monotonic() - started:.0f} s", flush=True)
        others = _other_suites() if arguments.report and not arguments.alone else None
    except AssertionError as error:
        print(f"broken: {error}", file=sys.stderr)
        return 1
    if arguments.images is not None:
        arguments.images.write_bytes(np.array(sorted(report.crashes.images), np.uint64).tobytes())
    # To find the call sites takes seconds, and crashes alone do not come to all of them.
    figures = report.crash_figures() if arguments.crashes_only else report.figures()
    figures |= others.figures() if others is not None else {}
    figures |= {"seconds": round(time.monotonic() - started)}
    for name, value in figures.items():
        print(f"{name:32} {value:>12,}")
    if not arguments.crashes_only:
        for kind, sites in (("crash", report.sites_without_crash()), ("error", report.sites_without_error())):
            for site in sorted(map(str, sites)):
                print(f"no {kind} at {site}")
    for kind in sorted(report.file_kinds_without_crash()):
        print(f"no crash of a change of: {kind}")
    failures = others.failures() if others is not None else []
    for failure in failures:
        print(f"broken: {failure}", file=sys.stderr)
    if arguments.report:
        print(json.dumps(figures))
    return bool(failures)


def _other_suites() -> Evidence:
    # To import all of them takes half a second, which a small piece of a sweep would notice.
    from tests import evidence

    return evidence.quick()


if __name__ == "__main__":
    raise SystemExit(main())
