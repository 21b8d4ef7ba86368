"""What the command line does for somebody who types by hand: overview, suggestions, durations, completion, pipes that close."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quiver_actors import __version__
from quiver_actors.cli.commands.completion import SHELLS
from quiver_actors.cli.commands.deploy import quiver_command
from quiver_actors.cli.durations import duration_ns, duration_seconds, positive_duration_seconds
from quiver_actors.cli.examples import all_parsers
from quiver_actors.cli.main import COMMANDS, build_parser, main

_PIPE_PROGRAM = """
import sys
from quiver_actors.cli.commands.tail import has_reader
assert has_reader()
print("ready", flush=True)
sys.stdin.readline()
sys.exit(3 if has_reader() else 0)
"""


def test_without_arguments_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n    {name}" not in shown] == []


def test_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"quiver {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(["statsu"], "status"), (["topics", "lsit"], "list"), (["status", "--check", "redy"], "ready")],
)
def test_a_misspelt_word_is_answered_with_the_right_one(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"did you mean {meant!r}?" in capsys.readouterr().err


def test_a_word_that_is_like_no_command_is_answered_with_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "expected one of up, status, " in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "topics create t slots=a=0 priority=1 --run-dir r",
        "topics create t --run-dir r slots=a=0 priority=1",
        "topics create t slots=a=0 --run-dir r priority=1",
        "topics create --run-dir r t slots=a=0 priority=1",
    ],
)
def test_options_stand_anywhere_between_the_words_of_a_list(line: str) -> None:
    parsed = build_parser("topics").parse_args(line.split())
    assert (parsed.topic, parsed.settings, parsed.run_dir) == ("t", ["slots=a=0", "priority=1"], "r")


def test_a_word_too_many_and_an_unknown_option_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for line, left in (("topics create t a=1 --nonsense", "--nonsense"), ("topics show t u", "u")):
        with pytest.raises(SystemExit):
            build_parser("topics").parse_args(line.split())
        assert f"unrecognized arguments: {left}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        build_parser("tail").parse_args(["tail", "t", "--untill-idle=1s"])
    told = capsys.readouterr().err
    assert told.startswith("usage: quiver tail ")
    assert "did you mean --until-idle?" in told


def test_durations_are_seconds_or_carry_a_unit() -> None:
    assert duration_ns("10") == duration_ns("10s") == 10_000_000_000
    assert duration_ns("0") == 0
    assert duration_seconds("250ms") == duration_seconds("0.25") == 0.25
    assert positive_duration_seconds("1.5m") == 90.0
    for wrong in ("ten", "10x", "-1", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="is not understood"):
            duration_ns(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="is not above 0"):
        positive_duration_seconds("0s")


def test_every_duration_of_every_command_has_the_same_syntax() -> None:
    converters = {duration_ns, duration_seconds, positive_duration_seconds}
    actions = [action for parser in all_parsers(build_parser()) for action in parser._actions]
    durations = [action for action in actions if action.metavar == "DURATION"]
    assert len(durations) >= 8
    assert {action.type for action in durations} <= converters
    assert not [action for action in actions if action.metavar == "SECONDS" or action.type is float]


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in script] == []


def fish_lines(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    """What fish offers, by the command it follows: the option or word, with what it is said to be."""
    assert main(["completion", "fish"]) == 0
    found: dict[str, dict[str, str]] = {}
    for line in capsys.readouterr().out.splitlines():
        words = shlex.split(line)
        if words[:3] != ["complete", "-c", "quiver"] or "-n" not in words:
            continue
        command = words[words.index("-n") + 1].partition(";")[0].partition(" ")[2]
        said = words[words.index("-d") + 1] if "-d" in words else ""
        offered = ["--" + words[words.index("-l") + 1]] if "-l" in words else []
        if "-a" in words:
            offered += words[words.index("-a") + 1].split()
        found.setdefault(command, {}).update(dict.fromkeys(offered, said))
    return found


def test_fish_offers_every_command_and_option_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    found, parser = fish_lines(capsys), build_parser()
    assert set(COMMANDS) < set(found[""])
    for each in all_parsers(parser):
        command = each.prog.removeprefix("quiver").strip()
        for action in each._actions:
            if isinstance(action, argparse._SubParsersAction):
                helps = {name: (inner.description or "") for name, inner in action.choices.items()}
            else:
                helps = {name: action.help for name in action.option_strings if name.startswith("--")}
            for name, help in helps.items():
                said = " ".join((help or "").replace("%(default)s", str(action.default)).replace("%%", "%").split())
                assert said.startswith(found[command][name]), f"{command} {name}"
                assert found[command][name], f"{command} {name} has no help"
                rest = said.removeprefix(found[command][name])
                assert not rest or rest[0] == ".", f"{command} {name}: a whole sentence"


def test_fish_offers_files_where_a_value_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for option in ("config", "data-dir"):
        (line,) = [each for each in lines if f"_using up' -l {option} " in each]
        assert " -x " not in line or "__fish_complete" in line, "else fish would offer nothing"


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes_a_command_and_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "fish"])
    script = tmp_path / "quiver.fish"
    script.write_text(capsys.readouterr().out)
    for typed, wanted in (
        ("quiver stat", "status"),
        ("quiver subscribers dro", "drop"),
        ("quiver up --cor", "--cores"),
    ):
        asked = f"source {script}; complete -C '{typed}'"
        done = subprocess.run(["fish", "-c", asked], capture_output=True, text=True, timeout=60, check=True)
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [wanted]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = tmp_path / "quiver.bash"
    script.write_text(capsys.readouterr().out)
    asked = (
        f"source {script}; COMP_WORDS=(quiver stat); COMP_CWORD=1; "
        '_shtab_quiver quiver stat quiver; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["status"]


def test_a_pipe_whose_reader_has_left_is_noticed_without_writing() -> None:
    """`quiver tail | head -5` hung until the next bundle came."""
    child = subprocess.Popen(
        [sys.executable, "-c", _PIPE_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.stdout.close()
    child.stdin.write("\n")
    child.stdin.close()
    assert child.wait(timeout=30) == 0


def test_units_start_the_quiver_of_this_installation(capsys: pytest.CaptureFixture[str]) -> None:
    """systemd searches /usr/bin and the like: a virtual environment's `quiver` was not found."""
    assert main(["deploy", "print", "systemd"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ExecStart=")]
    command = quiver_command()
    assert os.path.isabs(command)
    assert os.access(command, os.X_OK)
    assert [line.split()[0] for line in lines] == [f"ExecStart={command}"] * 2
