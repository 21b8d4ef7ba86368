"""Texts made from the settings table: the page of the documentation, and the file to begin with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.base.config import parse_config
from quiver_actors.base.config.table import SETTINGS, Scope, Setting, value_at
from quiver_actors.base.config.tree import NodeSettings, TopicSettings
from quiver_actors.base.config.writing import initial_file, reference

ROOT = Path(__file__).parents[4]


def test_the_configuration_page_is_what_the_table_says() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == reference(), "run `python -m quiver_actors.base.config.writing > docs/configuration.md`"


def test_the_initial_file_sets_nothing() -> None:
    assert tomllib.loads(initial_file()) == {
        "access": {},
        "archive": {},
        "log": {},
        "serve": {},
        "tier": {},
        "segment": {},
        "wal": {},
        "retention": {},
    }
    assert parse_config(tomllib.loads(initial_file())) == parse_config({})


def test_the_initial_file_with_its_comments_taken_away_sets_every_default() -> None:
    bare = re.sub(r"^# (?=\w+ = |\[)", "", initial_file(), flags=re.MULTILINE)
    document = tomllib.loads(bare)
    assert set(document.pop("topics")) == {"clicks"}
    assert parse_config(document) == parse_config({})
    assert bare.count(" = ") >= len(SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_default_reads_back_as_it_is_written(setting: Setting) -> None:
    tree = NodeSettings() if setting.scope is Scope.NODE else TopicSettings()
    literal = tomllib.loads(f"value = {setting.default_text}")["value"]
    assert setting.kind.read(literal) == value_at(tree, setting.field)


def test_every_field_of_the_trees_is_a_setting() -> None:
    def fields(tree: Any, prefix: str = "") -> set[str]:
        found = set()
        for name in type(tree).__struct_fields__:
            inner = getattr(tree, name)
            found |= fields(inner, f"{prefix}{name}.") if hasattr(inner, "__struct_fields__") else {f"{prefix}{name}"}
        return found

    in_table = {setting.field for setting in SETTINGS}
    assert fields(NodeSettings()) - {"topics"} | fields(TopicSettings()) - {"name"} == in_table
