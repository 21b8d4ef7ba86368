"""Runs the benchmarks one after the other and keeps what they print: `make bench`.

Every module runs in a process of its own, its JSON lines go to `bench_results/NAME.jsonl`, and `benchmarks.report` makes the page from
what is there. Full form: 5 rounds of everything. With `--minutes` every module gets a share of the time that is left: it runs one round
first, then as many as fit (5 at most); one that takes more than twice its share is interrupted, and keeps what it had printed.

    python -m benchmarks.suite [--minutes M] [--quick] [--only MODULE ...] [--dir D] [--page docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path("bench_results")
MODULES = (
    "push_cost",
    "calls",
    "handoff",
    "seal",
    "footprint",
    "latency",
    "embedded",
    "besieged",
    "ingest",
    "peers",
    "deliver",
    "query",
    "statistics_cost",
    "live",
    "scale",
    "recovery",
    "topics",
    "status",
    "subscribers",
    "trickle",
    "archive",
    "store_away",
    "slow_cold",
    "remote",
    "backlog",
    "spark",
    "live_spark",
    "caps",
)
"""Modules in the order of the page."""
IN_TIME_BOX = {
    "caps": ["--seconds", "10"],
    "subscribers": ["--gigabytes", "1"],
    "footprint": ["--rounds", "3"],
    "backlog": ["--bundles", "300000"],
    "store_away": ["--seconds", "15"],
    "slow_cold": ["--seconds", "15"],
}
"""Shorter where rounds alone do not make it so."""
WEIGHTS = {
    "ingest": 5,
    "peers": 3,
    "spark": 3,
    "scale": 3,
    "latency": 2,
    "deliver": 2,
    "live": 3,
    "live_spark": 3,
    "recovery": 2,
    "subscribers": 2,
    "caps": 2,
}
"""Weight of a module's share of the time: about how much longer than others one round of it takes."""
ROUNDS_MAX = 5


def run(module: str, options: list[str], seconds_max: float | None) -> tuple[bool, float]:
    """Run it once, its lines into its file; whether it came to its end, and how long that took."""
    started = time.monotonic()
    with open(RESULTS / f"{module}.jsonl", "wb") as results:
        command = [sys.executable, "-m", f"benchmarks.{module}", "--json", *options]
        process = subprocess.Popen(command, stdout=results, start_new_session=True)
        try:
            process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            print(f"== {module}: interrupted after {seconds_max:.0f} s", flush=True)
            end(process)
        except BaseException:
            end(process)
            raise
    return process.returncode == 0, time.monotonic() - started


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a module as Ctrl-C would: it ends its nodes and removes its data; by force if that takes too long."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_in_share(module: str, options: list[str], share_seconds: float) -> bool:
    """One round, and then, if at least two fit into the rest, as many as do instead."""
    options = [*options, *IN_TIME_BOX.get(module, [])]
    one = [*options, "--rounds", "1"]
    ended, took = run(module, one, 2 * share_seconds)
    rounds = min(ROUNDS_MAX, int((share_seconds - took) / max(took, 0.1)))
    if not ended or rounds < 2:
        return ended
    kept = (RESULTS / f"{module}.jsonl").read_bytes()
    ended, _ = run(module, [*options, "--rounds", str(rounds)], 2 * share_seconds)
    if not ended:
        (RESULTS / f"{module}.jsonl").write_bytes(kept)
    return ended


def run_all(modules: list[str], options: list[str], minutes: float) -> list[str]:
    """Run the modules and return those that did not come to their end."""
    until = time.monotonic() + minutes * 60
    failed = []
    for number, module in enumerate(modules):
        started = time.monotonic()
        if minutes:
            part = WEIGHTS.get(module, 1) / sum(WEIGHTS.get(name, 1) for name in modules[number:])
            ended = run_in_share(module, options, max(5.0, (until - started) * part))
        else:
            ended, _ = run(module, options, None)
        failed += [] if ended else [module]
        print(f"== {module}: {time.monotonic() - started:.0f} s{'' if ended else ', not to its end'}", flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0, help="for all together (default: as long as 5 rounds take)")
    parser.add_argument("--quick", action="store_true", help="one short round of each: shows that they work")
    parser.add_argument("--only", nargs="+", default=list(MODULES), choices=MODULES, help="these modules")
    parser.add_argument("--dir", default=None, help="directory for data, on a real disk")
    parser.add_argument("--page", default="docs/benchmarks.md", help="the page to write; empty: none")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="quiver-suite-", dir=arguments.dir, ignore_cleanup_errors=True
    ) as directory:
        options = [*(["--quick"] if arguments.quick else []), "--dir", directory]
        failed = run_all([module for module in MODULES if module in arguments.only], options, arguments.minutes)
    if arguments.page:
        subprocess.run([sys.executable, "-m", "benchmarks.report", "--page", arguments.page], check=True)
    sys.exit(f"not to their end: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
