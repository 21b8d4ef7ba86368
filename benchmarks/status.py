"""How long does an operator wait for `quiver status`?

Method: a real node of two workers with many topics and subscribers (`--topics N`, default 50 with one subscriber each). `quiver status`,
`quiver status --json` and, as what they cannot be faster than, an interpreter that does nothing run one after the other in alternating
order, each in a process of its own, with compiled modules as an installation has them: its processor time (user and system) and the time
until it has ended. Aim: less than 100 ms. The time until its end says something on a quiet machine only; processor time always does.

    python -m benchmarks.status [--topics N] [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial

import quiver_actors
from benchmarks.harness import Measurements, begun, parser, read_options, run_interleaved, running_node

_REPEATS = 5


def measure(command: list[str], repeats: int, environment: dict[str, str]) -> Measurements:
    """The least of some runs: what the machine adds is not the command's."""
    took, used = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        took.append((time.perf_counter() - started) * 1e3)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{command} ended with {process.returncode}")
        used.append((usage.ru_utime + usage.ru_stime) * 1e3)
    return {"cpu_ms": min(used), "wall_ms": min(took)}


def _with_compiled_modules(directory: str) -> dict[str, str]:
    """This environment, where the first run leaves compiled modules in a directory for the others, whatever is set here."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": directory}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--topics", type=int, default=50, help="topics with a subscriber each (default 50)")
    options = read_options(arguments)
    config = "".join(f"[topics.topic_{number:04}]\n" for number in range(options.topics))
    repeats = 1 if options.quick else _REPEATS
    with begun(options) as (report, directory), running_node(directory, config, cores=2, ready_seconds=120) as run_dir:
        with quiver_actors.connect(run_dir) as client:
            for number in range(options.topics):
                client.subscribe("reader", topic=f"topic_{number:04}").close()
        quiver = [sys.executable, "-m", "quiver_actors.cli.main", "status", "--run-dir", run_dir]
        commands = {
            "interpreter": [sys.executable, "-c", "pass"],
            "status": quiver,
            "status --json": [*quiver, "--json"],
        }
        environment = _with_compiled_modules(os.path.join(directory, "compiled"))
        subprocess.run(quiver, stdout=subprocess.DEVNULL, env=environment, check=True)
        results = run_interleaved(
            {name: partial(measure, command, repeats, environment) for name, command in commands.items()},
            options.rounds,
            warm_bytes=1 << 20,
        )
        for key, unit in (("cpu_ms", "ms CPU"), ("wall_ms", "ms")):
            report.show_rounds(f"status/interpreter alone/{key}", results["interpreter"], key, unit)
            for name in ("status", "status --json"):
                against = ("an interpreter alone", results["interpreter"])
                report.show_rounds(f"{name}/{options.topics} topics/{key}", results[name], key, unit, "", against)


if __name__ == "__main__":
    main()
