"""Reads settings from a file, the environment and flags into one checked tree, with the origin of each value. Pure but for `load`.

Layers, the later one wins: defaults, the TOML file, `QUIVER_SECTION__KEY` in the environment, flags. All problems of all layers are
found in one pass; each names its place (file and line, variable or flag), the key, what was expected and, for an unknown key, the nearest
one that exists.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from quiver_actors.base.config.checks import conflicts, contradictions
from quiver_actors.base.config.lines import KeyPath, lines_of
from quiver_actors.base.config.table import SETTINGS, Scope, Setting, settings_of, value_at
from quiver_actors.base.config.tree import NodeSettings, TopicSettings
from quiver_actors.base.model import DEFAULT_TOPIC, check_id
from quiver_actors.errors import ConfigError, QuiverError

ENVIRONMENT_PREFIX = "QUIVER_"
DEFAULT_ORIGIN = "default"
_TOPICS = "topics"
_KEY_CHARACTERS_MAX = 200
"""Longest key compared with the known ones: no real key is longer, and comparing takes time."""
_NOT_OURS = re.compile(
    r"_SERVICE_(HOST|PORT.*)$|_PORT(_\d+_(TCP|UDP).*)?$|^QUIVER_(TEST|SIM|CRASH|FAULT)_|^QUIVER_(NODES|TOKEN)$"
)
"""What Kubernetes puts into every container for a service that is called quiver or quiver-something; and knobs of our test suite."""


class Entry(msgspec.Struct, frozen=True):
    """One value of a setting, and the source that set it."""

    topic: str | None
    """Name of the topic that the value is for; None: for the node or for all topics."""
    setting: Setting
    value: Any
    origin: str
    """`file quiver.toml`, `environment QUIVER_CORES`, `flag --cores`."""

    path: KeyPath = ()
    """Path of the key as the source spells it; empty: `place` names the key."""

    @property
    def place(self) -> str:
        """The key with the section of its topic, as the file spells it."""
        return self.setting.key if self.topic is None else f"{_TOPICS}.{self.topic}.{self.setting.key}"


class Resolved(msgspec.Struct, frozen=True):
    """The settings in force, and the source of each value."""

    settings: NodeSettings
    entries: dict[str, Entry]
    """The winning value of each setting, by whole key."""
    base: TopicSettings = TopicSettings()
    """Settings of a topic that the configuration does not name."""

    @classmethod
    def of(cls, settings: NodeSettings) -> Resolved:
        """A tree that did not come from a file, with everything in it as given."""
        entries = [
            Entry(name, setting, value_at(topic, setting.field), "caller")
            for name, topic in settings.topics.items()
            for setting in settings_of(Scope.TOPIC).values()
        ]
        return cls(
            msgspec.structs.replace(settings, topics=settings.all_topics()), {entry.place: entry for entry in entries}
        )

    def origin(self, setting: Setting, topic: str | None = None) -> str:
        """Where the value of a setting comes from; for a topic also from the top of the file, or a default."""
        own = self.entries.get(f"{_TOPICS}.{topic}.{setting.key}") if topic is not None else None
        found = own or self.entries.get(setting.key)
        return found.origin if found is not None else DEFAULT_ORIGIN

    def given(self, topic: str) -> dict[str, Entry]:
        """Return the entries that were set for this topic alone, by key."""
        return {entry.setting.key: entry for entry in self.entries.values() if entry.topic == topic}


def load_config(
    path: str | None, overrides: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> NodeSettings:
    """The settings from the TOML file at `path` (None: no file), the environment and flags; see `resolve`."""
    return resolve(path, overrides, environment).settings


def resolve(
    path: str | None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Resolved:
    """Read and check all layers.

    Args:
        overrides: from flags, by key; None = not given.
        environment: None: that of this process.
        given: by a caller, like a file's document; keys may be dotted. Wins over the file.

    Raises:
        ConfigError: the file cannot be read or is no TOML; or a line for each unknown key, wrong value and contradiction.
    """
    resolved, problems = examine(path, overrides, environment, given)
    if problems or resolved is None:
        raise ConfigError("\n".join(problems))
    return resolved


def examine(
    path: str | None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
) -> tuple[Resolved | None, list[str]]:
    """Resolve the settings like `resolve`, but return the problems instead of raising them; with problems there are no settings.

    Raises:
        ConfigError: the file cannot be read or is no TOML.
    """
    reader = _Reader()
    if path is not None:
        text = _read_file(path)
        reader.read_document(_parsed(text, path), f"file {path}", text)
    for key, value in (given or {}).items():
        reader.read_path(tuple(key.split(".")), value, "argument settings")
    reader.read_environment(os.environ if environment is None else environment)
    for key, value in (overrides or {}).items():
        if value is not None:
            reader.read_value(None, _setting_of(key), value, f"flag --{key.replace('_', '-')}")
    return reader.finish()


def parse_config(document: Mapping[str, Any]) -> NodeSettings:
    """The settings of a parsed TOML document alone. Raises ConfigError as `resolve`."""
    reader = _Reader()
    reader.read_document(document, "")
    resolved, problems = reader.finish()
    if resolved is None:
        raise ConfigError("\n".join(problems))
    return resolved.settings


def check_settings(settings: NodeSettings) -> None:
    """Refuse values that contradict each other. Raises ConfigError."""
    if problems := contradictions(settings):
        raise ConfigError("\n".join(problems))


@dataclass(frozen=True, slots=True)
class _Problem:
    path: KeyPath
    message: str
    origin: str
    colon: str = ":"
    written: KeyPath = ()
    """The key in the file, where it is another one: that of all topics."""

    def __str__(self) -> str:
        return f"{self.origin}{': ' if self.origin else ''}key '{'.'.join(self.path)}'{self.colon} {self.message}"


class _Reader:
    """Gathers entries and problems, layer by layer."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.problems: list[_Problem] = []
        self._topics: list[str] = [DEFAULT_TOPIC]
        self._file = ("", "")
        """Origin and text."""

    # --- layers ----------------------------------------------------------------------------------------------------------

    def read_document(self, document: Mapping[str, Any], origin: str, text: str = "") -> None:
        self._file = (origin, text)
        for key, value in document.items():
            self.read_path((key,), value, origin)

    def read_environment(self, environment: Mapping[str, str]) -> None:
        for name in sorted(environment):
            rest = name.removeprefix(ENVIRONMENT_PREFIX)
            if rest != name and environment[name] and not _NOT_OURS.search(name):
                path = [part.lower() for part in rest.split("__")]
                if path[0] == _TOPICS and len(path) > 1:
                    path[1] = self._topic_like(path[1])
                self.read_path(tuple(path), environment[name], f"environment {name}", is_text=True)

    def read_path(self, path: tuple[str, ...], value: Any, origin: str, *, is_text: bool = False) -> None:
        """Read a value at a path of keys, or a table of values."""
        topic, inner = self._split(path)
        known = self._known(topic)
        key = ".".join(inner)
        if key in known:
            self.read_value(topic, known[key], value, origin, is_text=is_text, path=path)
        elif (
            path == (_TOPICS,) or (len(path) == 2 and path[0] == _TOPICS) or any(k.startswith(f"{key}.") for k in known)
        ):
            self._read_table(path, value, origin)
        else:
            self._refuse_unknown(path, topic, known, origin)

    def read_value(
        self,
        topic: str | None,
        setting: Setting,
        value: Any,
        origin: str,
        *,
        is_text: bool = False,
        path: KeyPath = (),
    ) -> None:
        path = path or (setting.key,)
        try:
            raw = setting.kind.from_text(value) if is_text else value
            read = setting.kind.read(raw)
        except (ConfigError, ValueError) as error:
            reason = f": {error}" if isinstance(error, ConfigError) else f"; expected {setting.expected}"
            self._refuse(path, f"{value!r} is not what was expected ({setting.kind.name}){reason}", origin)
            return
        if setting.choices and read not in setting.choices:
            self._refuse(path, f"{read!r} is unknown; expected {setting.expected}", origin)
        elif not _is_within(read, setting):
            self._refuse(path, f"{value!r} is out of range; expected {setting.expected}", origin)
        else:
            entry = Entry(topic, setting, read, origin, path)
            self.entries[entry.place] = entry

    # --- private ---------------------------------------------------------------------------------------------------------

    def _split(self, path: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
        return (path[1], path[2:]) if path[0] == _TOPICS and len(path) > 1 else (None, path)

    def _known(self, topic: str | None) -> dict[str, Setting]:
        known = dict(settings_of(Scope.TOPIC))
        if topic is None:
            known.update(settings_of(Scope.NODE))
        known.update({setting.also: setting for setting in known.values() if setting.also})
        return known

    def _topic_like(self, name: str) -> str:
        """The environment has one case only: a topic that the file names is meant, whatever its case."""
        return next((topic for topic in self._topics if topic.lower() == name), name)

    def _read_table(self, path: tuple[str, ...], value: Any, origin: str) -> None:
        place = ".".join(path)
        if not isinstance(value, Mapping):
            example = f"{place}.clicks" if path == (_TOPICS,) else place
            self._refuse(path, f"expected a table such as [{example}]", origin)
            return
        if len(path) == 2 and path[0] == _TOPICS:
            try:
                check_id("topic", path[1])
            except QuiverError as error:
                self._refuse(path, str(error), origin)
                return
            if path[1] not in self._topics:
                self._topics.append(path[1])
        for key, inner in value.items():
            self.read_path((*path, key), inner, origin)

    def _refuse_unknown(
        self, path: tuple[str, ...], topic: str | None, known: Mapping[str, Setting], origin: str
    ) -> None:
        prefix = "" if topic is None else f"{_TOPICS}.{topic}."
        wanted = ".".join(path).removeprefix(prefix)
        sections = {key.partition(".")[0] for key in known if "." in key} | ({_TOPICS} if topic is None else set())
        near = nearest_key(wanted, [*known, *sorted(sections)])
        hint = f"did you mean '{prefix}{near}'?" if near else f"known keys: {', '.join(sorted(known))}"
        self._refuse(path, f"is unknown; {hint}", origin, colon="")

    def _refuse(self, path: KeyPath, message: str, origin: str, *, colon: str = ":") -> None:
        self.problems.append(_Problem(path, message, origin, colon))

    def finish(self) -> tuple[Resolved | None, list[str]]:
        """The tree of all entries, checked against itself."""
        for entry in self.entries.values():
            if entry.topic is not None and entry.topic not in self._topics:
                self._topics.append(entry.topic)
        if self.problems:
            return None, self._told(self.problems)
        base: TopicSettings = with_values(TopicSettings(), self._fields(None, Scope.TOPIC))
        settings = self._build(base)
        if found := conflicts(settings):
            return None, self._told([self._at_fault(key, message) for key, message in found])
        return Resolved(settings, self.entries, base), []

    def _at_fault(self, key: str, message: str) -> _Problem:
        """Return the contradiction as a problem of the source that set the value, for the topic or for all topics."""
        path = tuple(key.split("."))
        for place in (path, path[2:]):
            if entry := self.entries.get(".".join(place)):
                return _Problem(path, message, entry.origin, written=entry.path)
        return _Problem(path, message, "")

    def _told(self, problems: list[_Problem]) -> list[str]:
        """Return the problems as text, those of the file with their lines."""
        origin, text = self._file
        lines = lines_of(text)
        told = []
        for problem in problems:
            line = lines.get(problem.written or problem.path) if problem.origin == origin else None
            told.append(str(problem if line is None else replace(problem, origin=f"{origin}, line {line}")))
        return told

    def _build(self, base: TopicSettings) -> NodeSettings:
        node = self._fields(None, Scope.NODE)
        topics = {name: with_values(base, {"name": name, **self._fields(name, Scope.TOPIC)}) for name in self._topics}
        built: NodeSettings = with_values(NodeSettings(), {**node, _TOPICS: topics})
        return built

    def _fields(self, topic: str | None, scope: Scope) -> dict[str, Any]:
        return {
            entry.setting.field: entry.value
            for entry in self.entries.values()
            if entry.topic == topic and entry.setting.scope is scope
        }


def nearest_key(wanted: str, known: Sequence[str]) -> str | None:
    """The key that was probably meant: one that looks alike, or the same name in another section."""
    if len(wanted) > _KEY_CHARACTERS_MAX:
        return None
    last = wanted.rpartition(".")[2]
    for key in known:
        if key.rpartition(".")[2] == last:
            return key
    if near := difflib.get_close_matches(wanted, known, n=1):
        return near[0]
    names = {key.rpartition(".")[2]: key for key in known}
    return next((names[name] for name in difflib.get_close_matches(last, list(names), n=1)), None)


def _is_within(value: Any, setting: Setting) -> bool:
    if setting.minimum is not None and value < setting.minimum:
        return False
    return setting.maximum is None or bool(value <= setting.maximum)


def _setting_of(key: str) -> Setting:
    return next(setting for setting in SETTINGS if setting.key == key)


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"config file {path!r} cannot be read: {error.strerror}; name a file that this user may read"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {path!r} is not UTF-8: {error}") from error


def _parsed(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config file {path!r} is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"config file {path!r} is not TOML that can be read: it nests too deeply") from error


def given_entries(resolved: Resolved) -> Iterator[Entry]:
    """Yield the values that were set, in the order of the table."""
    order = {setting.key: number for number, setting in enumerate(SETTINGS)}
    yield from sorted(resolved.entries.values(), key=lambda entry: (entry.topic or "", order[entry.setting.key]))


def with_values(base: Any, values: Mapping[str, Any]) -> Any:
    """The tree with some dotted fields replaced by values (of the tree's own units)."""
    plain: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for field, value in values.items():
        head, dot, rest = field.partition(".")
        if dot:
            nested.setdefault(head, {})[rest] = value
        else:
            plain[head] = value
    for head, inner in nested.items():
        plain[head] = with_values(getattr(base, head), inner)
    return msgspec.structs.replace(base, **plain)
