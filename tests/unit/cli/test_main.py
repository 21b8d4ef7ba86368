from __future__ import annotations

import subprocess
import sys

import pytest

from quiver_actors import __version__
from quiver_actors.cli.examples import all_parsers
from quiver_actors.cli.main import COMMANDS, build_parser, exit_code_of, main
from quiver_actors.errors import (
    AlreadyRunning,
    ConfigError,
    DiskError,
    NotRunning,
    QuiverError,
    UnsupportedVersion,
    WorkerUnavailable,
)
from quiver_actors.shm.errors import NoRoom
from quiver_actors.supervisor.errors import UnsafeFork

LIGHT = [
    "node.composition",
    "base.config",
    "cli.main",
    "cli.commands.up",
    "cli.commands.status",
    "store.status.status_view",
    "cli.commands.status_table",
    "supervisor.loop",
]


def test_importing_the_node_and_the_command_line_loads_no_data_libraries() -> None:
    names = [f"quiver_actors.{name}" for name in LIGHT]
    program = (
        f"import importlib, os, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "heavy = {'pyarrow', 'numpy', 'psutil', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\nassert len(os.listdir('/proc/self/task')) == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (AlreadyRunning("x"), 3),
        (NotRunning("x"), 3),
        (UnsupportedVersion("x"), 4),
        (DiskError("open", "/x", 28), 4),
        (WorkerUnavailable("x"), 1),
        (NoRoom("x"), 1),
        (UnsafeFork("x"), 1),
    ],
)
def test_exit_code_of_says_what_the_shell_should_do(error: QuiverError, code: int) -> None:
    assert exit_code_of(error) == code


def test_version_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"quiver {__version__}\n"


@pytest.mark.parametrize("arguments", [["fly"], ["up", "--cores", "many"], ["version", "now"]])
def test_wrong_arguments_end_with_the_usage_code(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: quiver" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["up", "status"])
def test_help_documents_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "exit codes:\n  0 " in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_one_command_is_parsed_without_the_others_as_with_them(command: str) -> None:
    alone, among_all = (list(all_parsers(build_parser(only)))[1:] for only in (command, None))
    names = [parser.prog for parser in alone]
    assert names[0] == f"quiver {command}"
    found = {parser.prog: parser for parser in among_all}
    assert [parser.format_help() for parser in alone] == [found[name].format_help() for name in names]


def test_looking_at_a_node_loads_no_other_command() -> None:
    heavy = ("quiver_actors.cli.commands.up", "quiver_actors.base.config.reading", "tomllib", "pyarrow")
    code = (
        "import sys; from quiver_actors.cli.main import build_parser; build_parser('status'); "
        f"import quiver_actors.store.status.status_view; print([name for name in sys.modules if name in {heavy!r}])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
