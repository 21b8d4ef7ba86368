"""The examples in a command's `--help`, as command lines that a test can run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from quiver_actors.cli.main import main

SHOWN_DATA_DIR, SHOWN_OUTPUT = "/var/lib/quiver", "/tmp/exported"
SHOWN_SEGMENT, SEGMENT = "0000000000000000.qseg", "0000000000000001.qseg"


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def examples_of(command: str, capsys: pytest.CaptureFixture[str], data_dir: Path, output: Path) -> list[list[str]]:
    """Arguments of each example, with the directories and the segment of this test."""
    text = help_of(command, capsys).partition("examples:\n")[2]
    lines = [line.strip() for line in text.splitlines()]
    found = [line.removeprefix("quiver ") for line in lines[: lines.index("")]]
    assert found, f"{command} --help has no examples"
    replaced = (
        line.replace(SHOWN_DATA_DIR, str(data_dir)).replace(SHOWN_OUTPUT, str(output)).replace(SHOWN_SEGMENT, SEGMENT)
        for line in found
    )
    return [shlex.split(line) for line in replaced]


def run_examples(command: str, capsys: pytest.CaptureFixture[str], data_dir: Path, output: Path) -> list[str]:
    """Run all examples of a command; each must succeed. Returns what each printed."""
    printed = []
    for arguments in examples_of(command, capsys, data_dir, output):
        assert main(arguments) == 0, arguments
        printed.append(capsys.readouterr().out)
    assert all(printed)
    return printed
