"""Runs `quiver` commands in the process of the test: where what a command says and does is asked, and not how its process ends."""

from __future__ import annotations

import contextlib
import io
import subprocess

from quiver_actors.cli.main import main


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, as `node_process.run_quiver` does in a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as refused:
            code = int(refused.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
