"""A new user: an empty environment, an empty home, the wheel of this source, and "Getting started" followed word for word.

    python -m tests.fresh_user [--keep]

Builds the wheel, makes a virtual environment beside it, and runs every block of docs/getting-started.md in order in an empty directory:
`sh` blocks in bash, `python` blocks in one interpreter of that environment. `pip install quiver-actors` installs the wheel, with what it
needs from the index that pip is set up with, in the versions of constraints.txt; its last step installs Spark and a Java runtime too, about
500 MB. Nothing of the source tree is on any path. What is `continued` is not run: it has no data. Exit code 0: everything worked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.docs.pages import ROOT, Block, blocks_of

PAGE = ROOT / "docs" / "getting-started.md"
NODE_SECONDS = 60.0
_INSTALLED = re.compile(r"pip install (?P<quote>'?)quiver-actors\b")
"""Where the page says the name that the package has in an index."""
_PYTHON = """
import json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(json.loads(line), names)
    except BaseException:
        traceback.print_exc()
        print("failed", flush=True, file=sys.__stderr__)
        sys.exit(1)
    print("\\0", flush=True)
"""


class NewUser:
    """One home, one directory to work in, one environment. `close` leaves no process behind."""

    def __init__(self, base: Path, wheel: Path) -> None:
        self.home = base / "home"
        self.work = base / "work"
        for directory in (self.home, self.work, base / "tmp"):
            directory.mkdir()
        self._wheel = wheel
        self._bin = self.work / ".venv" / "bin"
        self._python: subprocess.Popen[str] | None = None
        self._nodes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            "HOME": str(self.home),
            "TMPDIR": str(base / "tmp"),
            "PATH": f"{self._bin}:/usr/local/bin:/usr/bin:/bin:{Path(sys.base_prefix) / 'bin'}",
            "LANG": "C.UTF-8",
            **_pip_environment(),
        }

    def run(self, block: Block) -> None:
        match block.language, block.mode:
            case "sh", _:
                self._shell(block.code)
            case "python", "" | "elsewhere":
                self._interpret(block.code)
            case _:
                print("    (not run: a fragment)")

    def _shell(self, code: str) -> None:
        waiting: list[str] = []
        for line in _INSTALLED.sub(f"pip install \\g<quote>{self._wheel}", code).splitlines():
            if line.rstrip().endswith("&"):
                self._bash("\n".join(waiting))
                waiting = []
                self._start(line.rstrip().removesuffix("&"))
            else:
                waiting.append(line)
        self._bash("\n".join(waiting))

    def _bash(self, code: str) -> None:
        if code.strip():
            command = ["bash", "-euo", "pipefail", "-c", code]
            subprocess.run(command, cwd=self.work, env=self.environment, check=True, timeout=600)

    def _start(self, command: str) -> None:
        """A node; a person would wait for the line that it prints."""
        node = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.work, env=self.environment, stdout=subprocess.PIPE
        )
        self._nodes.append(node)
        assert node.stdout is not None
        print("   ", node.stdout.readline().decode().rstrip())

    def _interpret(self, code: str) -> None:
        if self._python is None:
            command = [str(self._bin / "python"), "-c", _PYTHON]
            pipe = subprocess.PIPE
            self._python = subprocess.Popen(
                command, cwd=self.work, env=self.environment, stdin=pipe, stdout=pipe, text=True
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(code) + "\n")
        self._python.stdin.flush()
        while (line := self._python.stdout.readline()) != "\0\n":
            if not line:
                raise RuntimeError(f"the interpreter ended with {self._python.wait()}")
            print("   ", line.rstrip())

    def stop_nodes(self) -> None:
        """Stop the nodes as the page says: kill, or Ctrl-C."""
        for node in self._nodes:
            node.send_signal(signal.SIGTERM)
            if code := node.wait(timeout=NODE_SECONDS):
                raise RuntimeError(f"the node ended with {code}")

    def close(self) -> None:
        for process in (self._python, *self._nodes):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def _pip_environment() -> dict[str, str]:
    """Which index there is, is a matter of the machine, also for a new user."""
    found = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    for place in (Path.home() / ".config" / "pip" / "pip.conf", Path.home() / ".pip" / "pip.conf"):
        if place.exists():
            found.setdefault("PIP_CONFIG_FILE", str(place))
    return {**found, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def build_wheel(directory: Path) -> Path:
    """The wheel of this source. Raises CalledProcessError."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (wheel,) = directory.glob("*.whl")
    return wheel


def follow(base: Path) -> None:
    """The whole page. Raises CalledProcessError or RuntimeError where it stumbles."""
    user = NewUser(base, build_wheel(base / "dist"))
    try:
        for block in blocks_of(PAGE):
            began = time.monotonic()
            print(f"--- {PAGE.name}:{block.line} {block.language} {block.mode}", flush=True)
            user.run(block)
            print(f"    {time.monotonic() - began:.1f} s", flush=True)
        user.stop_nodes()
    finally:
        user.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the environment where it is")
    keep = parser.parse_args().keep
    base = Path(tempfile.mkdtemp(prefix="qv-new-"))
    try:
        follow(base)
    except (subprocess.SubprocessError, RuntimeError) as error:
        print(f"fresh user: STUMBLED: {error}", file=sys.stderr)
        return 1
    finally:
        if keep:
            print(f"fresh user: kept in {base}")
        else:
            shutil.rmtree(base)
    print("fresh user: every step of getting started worked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
