"""The command line as a whole: its page in the documentation, an example and exit codes for every command."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from quiver_actors.cli.examples import EXAMPLES, all_parsers, examples_of
from quiver_actors.cli.main import build_parser
from quiver_actors.cli.reference import reference

ROOT = Path(__file__).parents[3]
PARSERS = {parser.prog: parser for parser in all_parsers(build_parser())}


def test_the_command_page_is_what_the_parsers_say() -> None:
    written = (ROOT / "docs" / "cli.md").read_text()
    assert written == reference(), "run `python -m quiver_actors.cli.reference > docs/cli.md`"


@pytest.mark.parametrize("name", PARSERS)
def test_every_command_has_an_example_of_itself(name: str) -> None:
    examples = examples_of(PARSERS[name])
    assert examples
    assert all(example.startswith(name) for example in examples)


@pytest.mark.parametrize("name", sorted(set(PARSERS) - {"quiver"}))
def test_every_command_says_its_exit_codes(name: str) -> None:
    _, heading, codes = PARSERS[name].format_help().partition("exit codes:\n")
    assert heading
    numbers = [int(line.split()[0]) for line in codes.splitlines() if line.strip()]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    assert set(numbers) <= {0, 1, 2, 3, 4, 5, 130}


@pytest.mark.parametrize("name", PARSERS)
def test_examples_are_possible_command_lines(name: str) -> None:
    for example in examples_of(PARSERS[name]):
        build_parser().parse_args(shlex.split(example.partition(" > ")[0])[1:])


def test_the_table_of_examples_names_commands_that_there_are() -> None:
    assert set(EXAMPLES) <= set(PARSERS)


@pytest.mark.parametrize("name", PARSERS)
def test_what_destroys_wants_a_word_of_consent(name: str) -> None:
    if name.split()[-1] not in ("drop", "delete", "repair"):
        return
    parser = PARSERS[name]
    options = {option for action in parser._actions for option in action.option_strings}
    assert {"--dry-run", "--yes"} <= options
    groups = [group for group in parser._mutually_exclusive_groups if group.required]
    assert any({"--dry-run", "--yes"} <= _options(group) for group in groups)


NO_JSON = {
    "quiver up": "runs until it is stopped; its log can be JSON lines",
    "quiver top": "for people; quiver status --json --watch has the figures",
    "quiver metrics": "runs until it is stopped",
    "quiver serve": "runs until it is stopped",
    "quiver config init": "prints a file",
    "quiver deploy print": "prints a file",
    "quiver completion": "prints a file",
}
WATCHED = {
    "quiver status",
    "quiver topics list",
    "quiver topics show",
    "quiver subscribers list",
    "quiver subscribers lag",
    "quiver subscribers orphans",
    "quiver transactions list",
}


def commands() -> dict[str, set[str]]:
    """The options of every command that does something."""
    return {
        name: {option for action in parser._actions for option in action.option_strings}
        for name, parser in PARSERS.items()
        if not any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
    }


def test_every_command_has_json_for_programs_or_a_reason_not_to() -> None:
    assert {name for name, options in commands().items() if "--json" not in options} == set(NO_JSON)


def test_what_looks_at_a_running_node_can_be_watched() -> None:
    assert {name for name, options in commands().items() if "--watch" in options} == WATCHED


def _options(group: argparse._MutuallyExclusiveGroup) -> set[str]:
    return {option for action in group._group_actions for option in action.option_strings}
