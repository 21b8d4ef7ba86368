"""Runs the blocks of one page in an empty directory: `python -m tests.docs.run_page PAGE DIRECTORY`. Exit code 0: all of them worked."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from quiver_actors.base.config import load_config
from quiver_actors.cli.examples import all_parsers, examples_of
from quiver_actors.cli.main import build_parser
from tests.docs.pages import ROOT, Block, blocks_of

_NODE_SECONDS = 60
_ENDLESS = re.compile(r"quiver (top( |$)|metrics(?!.*--once)|.*--watch)")


class Page:
    """One page in its directory: names of its Python blocks, nodes that its shell blocks started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, Any] = {"__name__": "__page__"}
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._examples = {line for parser in all_parsers(build_parser()) for line in examples_of(parser)}

    def run(self) -> int:
        try:
            for block in blocks_of(self._path):
                print(f"--- {self._path.name}:{block.line} {block.language} {block.mode}", flush=True)
                self._run_block(block)
        except Exception:  # noqa: BLE001 - whatever a block raises is this page's failure
            traceback.print_exc()
            return 1
        finally:
            self._stop_nodes()
        return 0

    def _run_block(self, block: Block) -> None:
        match block.language, block.mode:
            case "python", "":
                exec(compile("\n" * block.line + block.code, self._path.name, "exec"), self._names)
            case "python", "continued" | "elsewhere":
                compile(block.code, self._path.name, "exec")
            case "sh", "":
                self._shell(block.code)
            case "sh", "elsewhere":
                _parse_commands(block.code)
            case "sh", "example":
                unknown = set(block.code.splitlines()) - self._examples
                assert not unknown, f"no help has the examples {unknown}"
            case "toml", "":
                Path("page.toml").write_text(block.code, encoding="utf-8")
                load_config("page.toml")
            case "json" | "text", "":
                return
            case _:
                raise ValueError(f"a block `{block.language} {block.mode}` is not known: see tests/docs/pages.py")

    def _shell(self, code: str) -> None:
        waiting: list[str] = []
        for line in _fitted(code).splitlines():
            is_node = line.startswith("quiver up") and line.rstrip().endswith("&")
            if is_node or _ENDLESS.match(line):
                self._bash("\n".join(waiting))
                waiting = []
                if is_node:
                    self._start_node(line.rstrip().removesuffix("&"))
                else:
                    _look_at(line)
            elif line.startswith("quiver doctor"):
                waiting.append(f"{line} || test $? = 4")  # this machine may have its faults
            else:
                waiting.append(line)
        self._bash("\n".join(waiting))

    def _bash(self, code: str) -> None:
        if code.strip():
            subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=True, timeout=240)

    def _start_node(self, command: str) -> None:
        self._nodes.append(subprocess.Popen(shlex.split(command, comments=True), stdout=subprocess.DEVNULL))
        subprocess.run(["quiver", "status", "--wait", "ready", "--timeout", f"{_NODE_SECONDS}s"], check=True)

    def _stop_nodes(self) -> None:
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            node.wait(timeout=_NODE_SECONDS)


def _fitted(code: str) -> str:
    """Return the code with places of this page, and ports that are free."""
    for place in ("/var/lib/quiver", "/etc/quiver", "/tmp/exported"):
        code = code.replace(place, f"{Path.cwd()}{place}")
    Path("etc/quiver").mkdir(parents=True, exist_ok=True)
    Path("var/lib").mkdir(parents=True, exist_ok=True)
    code = code.replace("unix:/run/quiver/", f"unix:{Path.cwd()}/").replace("0.0.0.0:9465", "127.0.0.1:0")
    return re.sub(r"^quiver metrics +#", "quiver metrics --listen 127.0.0.1:0 #", code, flags=re.MULTILINE)


def _look_at(line: str) -> None:
    """A command that goes on until it is stopped: it speaks, and ends when it is told to."""
    with subprocess.Popen(shlex.split(line, comments=True), stdout=subprocess.PIPE) as command:
        try:
            assert command.stdout is not None
            assert command.stdout.readline(), f"{line}: says nothing"
            command.send_signal(signal.SIGINT)
            command.stdout.read()
            code = command.wait(timeout=_NODE_SECONDS)
            assert code in (0, 130), f"{line}: exit code {code}"
        finally:
            command.kill()


def _parse_commands(code: str) -> None:
    """Every command of ours in a block that runs elsewhere must at least be one."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and words[0] in ("sudo", "exec"):
            words = words[1:]
        match words:
            case ["quiver", *_]:
                ends = [index for index, word in enumerate(words) if word in ("|", "&&", ">", "&", ";")]
                build_parser().parse_args(words[1 : min(ends, default=len(words))])
            case ["make", *targets]:
                there = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
                missing = [target for target in targets if "=" not in target and target not in there]
                assert not missing, f"no make target {missing}"
            case ["python", "-m", module, *_]:
                assert importlib.util.find_spec(module), f"no module {module}"


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    sys.exit(Page(Path(sys.argv[1])).run())
