"""The settings table as text: the commented file of `quiver config init`, and docs/configuration.md.

python -m quiver_actors.base.config.writing      prints docs/configuration.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from quiver_actors.base.config.table import SETTINGS, Scope, Setting

_WIDTH = 100
_ORDER = "Later wins: the defaults, this file, QUIVER_SECTION__KEY in the environment, flags of `quiver up`."


def initial_file() -> str:
    """A TOML file that sets nothing: every setting with its default, as a comment."""
    lines = [
        "# Settings of a Quiver node. Every line that is a comment here shows a default; take the # away to change it.",
        f"# {_ORDER}",
        "# Check with `quiver config check FILE`, see what holds with `quiver config show --origin`.",
        "",
    ]
    for section, settings in _sections(SETTINGS):
        lines += ["", f"[{section}]"] if section else []
        for setting in settings:
            lines += ["", *_commented(setting)]
    lines += [
        "",
        "# One topic: whatever is not said here is as above.",
        "# [topics.clicks]",
        '# durability = "wal"',
        "# [topics.clicks.slots]",
        "# page = 0",
    ]
    return "\n".join(lines) + "\n"


def _commented(setting: Setting) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(setting.about, _WIDTH))
    yield from (f"# {line}" for line in textwrap.wrap(f"Expected: {setting.expected}.", _WIDTH))
    if note := _when(setting):
        yield f"# {note}"
    yield f"# {_name(setting)} = {setting.default_text}"


def _when(setting: Setting) -> str:
    if setting.fixed:
        return "Cannot be changed for a topic that exists."
    return "" if setting.live else "A change needs a restart."


def _name(setting: Setting) -> str:
    return setting.key.rpartition(".")[2]


def _sections(settings: Iterable[Setting]) -> list[tuple[str, list[Setting]]]:
    """Settings by section, those without one first: in TOML they must stand before every table."""
    found: dict[str, list[Setting]] = {"": []}
    for setting in settings:
        found.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    return list(found.items())


_INTRODUCTION = """\
# Configuration

A node runs without any configuration: `quiver up` alone uses the defaults below. What differs goes into one TOML file,
`quiver up --config quiver.toml`; `quiver config init > quiver.toml` writes one with every setting as a comment.

This page is made from the table that the program reads settings with (`python -m quiver_actors.base.config.writing`); a test compares them.

## Where a value comes from

The later one wins:

1. the default,
2. the file: at its top for the node and for all topics, below `[topics.NAME]` for one topic,
3. the environment: `QUIVER_` and the key in capitals, with two underscores for each dot: `QUIVER_SEGMENT__TARGET_SIZE=64MiB`,
   `QUIVER_TOPICS__CLICKS__WAL__FLUSH_INTERVAL=25ms`; lists and tables as `a,b` and `flights=0,weather=1`,
4. flags of `quiver up`: `--data-dir`, `--run-dir`, `--cores`.

`quiver config show --origin` prints what holds and where it comes from. For topics that were made or changed at run time see
`quiver topics show`: what `quiver topics set` said stands between the top of the file and `[topics.NAME]`.

## Values

Sizes are text with a unit (`"32MiB"`, `"1.5GB"`) or a number of bytes, durations text with a unit (`"25ms"`, `"5s"`, `"3d"`). An
unknown key, a wrong type, a value out of range and settings that contradict each other are refused when the node starts, each with its
file and line (or variable, or flag), its key, what was expected, and the key that was probably meant. `quiver config check FILE` does
only that.

## Changing a running node

After a change of the file, `quiver config reload` (or SIGHUP to the supervisor) applies what can change live, and says what holds
from the next start on only. If the file is wrong nothing changes.

"""


def reference() -> str:
    """The text of docs/configuration.md."""
    parts = [_INTRODUCTION]
    parts += [_table("Settings of the node", [s for s in SETTINGS if s.scope is Scope.NODE])]
    parts += [
        _table(
            "Settings of topics",
            [s for s in SETTINGS if s.scope is Scope.TOPIC],
            "At the top of the file for all topics, below `[topics.NAME]` for one.",
        )
    ]
    return "\n".join(parts)


def _table(heading: str, settings: Iterable[Setting], note: str = "") -> str:
    lines = [f"## {heading}", "", *([note, ""] if note else [])]
    lines += ["| key | default | expected | change | what it does |", "|---|---|---|---|---|"]
    lines += [_row(setting) for setting in settings]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    change = "never" if setting.fixed else "live" if setting.live else "restart"
    about = setting.about + (" Not for the topic's owner." if setting.operators else "")
    about += f" Also accepted as `{setting.also}`." if setting.also else ""
    cells = (f"`{setting.key}`", f"`{setting.default_text}`", setting.expected, change, about)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(reference(), end="")
