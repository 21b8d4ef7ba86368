"""docs/cli.md, made from the parsers themselves.

python -m quiver_actors.cli.reference      prints it
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from quiver_actors.cli.examples import all_parsers, examples_of
from quiver_actors.cli.main import build_parser

_INTRODUCTION = """\
# Commands

Made from the program (`python -m quiver_actors.cli.reference`); a test compares them, and another one runs every example.

Data goes to stdout, messages to stderr. Tables are for people, worst first, in colour on a terminal only (and never with `NO_COLOR` set);
`--json` is for programs: one object whose `schema_version` says how to read it, to which fields are only ever added. What destroys
something wants `--dry-run` or `--yes`. A command finds its node by `--run-dir`, else by the file of `--config`, else in the user's default
run directory.

| exit code | meaning, where the command does not say otherwise |
|---|---|
| 0 | done, or it is so |
| 1 | unexpected error |
| 2 | wrong arguments or settings; no such topic, subscriber, ... |
| 3 | no node is running; or another one holds the directory |
| 4 | a check does not hold; or a file or directory cannot be used |
| 5 | it did not come in time; or something is damaged |
| 130 | stopped by a signal |
"""


def reference() -> str:
    """The whole page."""
    return "\n".join(
        [_INTRODUCTION, *(_section(parser) for parser in all_parsers(build_parser()) if parser.prog != "quiver")]
    )


def _section(parser: argparse.ArgumentParser) -> str:
    level = "##" if parser.prog.count(" ") == 1 else "###"
    parts = [f"{level} {parser.prog}\n", f"{_plain(parser.description or '')}\n"]
    options = list(_options(parser))
    if options:
        parts.append("\n".join(["| argument | |", "|---|---|", *options]) + "\n")
    if examples := examples_of(parser):
        parts.append("```sh example\n" + "\n".join(examples) + "\n```\n")
    return "\n".join(parts + [f"```text\n{rest}\n```\n" for rest in _rest(parser)])


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if isinstance(action, argparse._SubParsersAction):
            names = ", ".join(f"`{name}`" for name in action.choices)
            yield f"| `{action.metavar}` | one of {names} |"
            continue
        value = "" if action.nargs == 0 else _value(action)
        names = ", ".join(action.option_strings) or value
        shown = f"{names} {value}".strip() if action.option_strings else names
        text = (action.help or "").replace("|", "\\|")
        required = " Required." if action.required and action.option_strings else ""
        yield f"| `{shown}` | {text[:1].upper() + text[1:]}{'.' if text else ''}{required} |"


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return str(action.metavar or action.dest.upper().replace("_", "-"))


def _plain(text: str) -> str:
    """A description as a paragraph; lists in it stay as they are."""
    if "\n  " not in text:
        return text.strip().replace("\n", " ") if "\n\n" not in text else text.strip()
    head, _, listed = text.strip().partition("\n\n")
    return f"{head}\n\n```text\n{listed}\n```"


def _rest(parser: argparse.ArgumentParser) -> list[str]:
    """What the help prints below the options, without the examples."""
    blocks = (parser.epilog or "").strip("\n").split("\n\n")
    return [block for block in (block.strip("\n") for block in blocks) if block and not block.startswith("examples:")]


if __name__ == "__main__":
    print(reference(), end="")
