"""What a change makes of the list of topics, and why it is refused: without a disk or a node."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from quiver_actors.base.config.reading import Resolved, resolve
from quiver_actors.base.topics import Catalogue
from quiver_actors.base.units import MIB
from quiver_actors.errors import ConfigError, InvalidId, TopicExists, UnknownTopic, UsageError
from quiver_actors.node.topics.changes import changed, configured, created, deleted, finished, origins

INCARNATIONS = [f"{number:016x}" for number in range(50)]
FILE = """
[segment]
target_size = "8MiB"
[topics.fixed]
wal.flush_interval = "25ms"
slots = { page = 0 }
"""


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    return read(tmp_path, FILE)


def read(directory: Path, text: str) -> Resolved:
    file = directory / "quiver.toml"
    file.write_text(text)
    return resolve(str(file), environment={})


def begun(resolved: Resolved, found: tuple[str, ...] = ()) -> Catalogue:
    return configured(Catalogue(), resolved, found, INCARNATIONS, 1, live=False)


def test_a_new_catalogue_has_what_is_configured_and_what_is_on_disk(resolved: Resolved) -> None:
    catalogue = begun(resolved, ("fixed-dead", "old"))
    assert {name: topic.source for name, topic in catalogue.topics.items()} == {
        "default": "config",
        "fixed": "config",
        "fixed-dead": "disk",
        "old": "disk",
    }
    assert len({topic.incarnation for topic in catalogue.topics.values()}) == 4
    assert catalogue.topics["fixed-dead"].settings.slots == {"page": 0}, "dead letters have the slots of their topic"
    assert begun(resolved) != catalogue
    assert configured(catalogue, resolved, (), INCARNATIONS, 2, live=False) is catalogue, "nothing new: no new version"


def test_values_of_commands_stand_between_the_top_of_the_file_and_the_topic_in_it(resolved: Resolved) -> None:
    catalogue = created(begun(resolved), resolved, "clicks", {"segment.target_size": "1MiB"}, "i", 5)
    catalogue = changed(catalogue, resolved, "clicks", {"priority": 7}, [])
    topic = catalogue.topics["clicks"]
    assert (topic.settings.segment.target_size_bytes, topic.settings.priority) == (MIB, 7)
    assert origins(topic, resolved) == {"segment.target_size": "quiver topics", "priority": "quiver topics"}
    catalogue = changed(catalogue, resolved, "clicks", {}, ["segment.target_size"])
    assert catalogue.topics["clicks"].settings.segment.target_size_bytes == 8 * MIB
    with pytest.raises(ConfigError, match=r"'wal\.flush_interval' of topic 'fixed' is set by file .*change it there"):
        changed(catalogue, resolved, "fixed", {"wal.flush_interval": "1ms"}, [])
    assert changed(catalogue, resolved, "fixed", {"priority": 1}, []).topics["fixed"].settings.priority == 1


def test_what_cannot_be_is_refused_and_says_why(resolved: Resolved) -> None:
    catalogue = begun(resolved)
    with pytest.raises(TopicExists, match="exists"):
        created(catalogue, resolved, "fixed", {}, "i", 5)
    with pytest.raises(InvalidId):
        created(catalogue, resolved, "a/b", {}, "i", 5)
    with pytest.raises(ConfigError, match="did you mean 'priority'"):
        created(catalogue, resolved, "clicks", {"prioritty": 1}, "i", 5)
    with pytest.raises(ConfigError, match="less than two segments"):
        created(catalogue, resolved, "clicks", {"wal.max_size": "10MiB"}, "i", 5)
    with pytest.raises(UnknownTopic, match="its topics are default, fixed"):
        changed(catalogue, resolved, "clicks", {"priority": 1}, [])
    with pytest.raises(ConfigError, match="cannot be changed"):
        changed(catalogue, resolved, "default", {"slots": "a=1"}, [])
    with pytest.raises(ConfigError, match="'nonsense' is unknown"):
        changed(catalogue, resolved, "default", {}, ["nonsense"])
    with pytest.raises(UsageError, match="always there"):
        deleted(catalogue, resolved, "default", 6)
    with pytest.raises(UsageError, match="in the configuration"):
        deleted(catalogue, resolved, "fixed", 6)


def test_a_new_name_differs_from_the_existing_ones_by_more_than_case(resolved: Resolved) -> None:
    catalogue = begun(resolved)
    with pytest.raises(
        TopicExists, match="'Fixed' differs from the existing topic 'fixed' by upper and lower case only"
    ):
        created(catalogue, resolved, "Fixed", {}, "i", 5)
    former = configured(catalogue, resolved, ["FIXED"], iter("abc"), 5, live=False)
    assert {"fixed", "FIXED"} <= former.topics.keys(), "topics of former releases still open"
    renamed = created(former, resolved, "clicks", {}, "i", 5)
    assert "clicks" in renamed.topics


def test_a_name_is_free_only_once_the_deletion_is_finished(resolved: Resolved) -> None:
    catalogue = created(begun(resolved), resolved, "clicks", {}, "first", 5)
    gone = deleted(catalogue, resolved, "clicks", 6)
    assert "clicks" not in gone.topics
    assert [(deletion.topic, deletion.incarnation) for deletion in gone.deletions] == [("clicks", "first")]
    with pytest.raises(TopicExists, match="still being deleted"):
        created(gone, resolved, "clicks", {}, "second", 7)
    assert "clicks" not in configured(gone, resolved, ("clicks",), INCARNATIONS, 7, live=True).topics
    again = created(finished(gone, "clicks"), resolved, "clicks", {}, "second", 8)
    assert again.topics["clicks"].incarnation == "second"
    versions = [each.version for each in (catalogue, gone, again)]
    assert all(before < after for before, after in itertools.pairwise(versions))


def test_a_reload_changes_what_is_live_and_keeps_slots(resolved: Resolved, tmp_path: Path) -> None:
    catalogue = created(begun(resolved), resolved, "clicks", {}, "i", 5)
    after = read(tmp_path, FILE.replace("8MiB", "4MiB").replace("page = 0", "page = 0, user = 1") + "[topics.views]\n")
    live = configured(catalogue, after, (), INCARNATIONS, 6, live=True)
    assert live.topics["clicks"].settings.segment.target_size_bytes == 4 * MIB
    assert live.topics["fixed"].settings.slots == {"page": 0}
    assert live.topics["views"].source == "config"
    assert live.topics["fixed"].incarnation == catalogue.topics["fixed"].incarnation
    restarted = configured(catalogue, after, (), INCARNATIONS, 6, live=False)
    assert restarted.topics["fixed"].settings.slots == {"page": 0, "user": 1}
