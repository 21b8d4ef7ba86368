"""Rights on topics: every kind of user against every kind of request."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.config.reading import resolve
from quiver_actors.base.config.table import Scope, settings_of
from quiver_actors.base.topics import Catalogue, Topic
from quiver_actors.errors import NotAllowed, QuotaExceeded
from quiver_actors.node.topics.changes import configured, created, deleted
from quiver_actors.node.topics.rights import Rights

OWN, ROOT, OWNER, USER, STRANGER = 1000, 0, 4000, 2000, 3000
CATALOGUE = Catalogue(
    topics={
        "default": Topic(settings=TopicSettings()),
        "clicks": Topic(settings=TopicSettings(name="clicks", owner_uid=OWNER, allowed_uids=(USER,))),
    }
)


def rights(uid: int) -> Rights:
    return Rights(uid, OWN)


def is_refused(uid: int, what: str) -> bool:
    of = rights(uid)
    checks = {
        "change": lambda: of.check_change(CATALOGUE, "clicks", ["durability"]),
        "change the operator's": lambda: of.check_change(CATALOGUE, "clicks", ["durability", "priority"]),
        "delete": lambda: of.check_delete(CATALOGUE, "clicks"),
        "delete another": lambda: of.check_delete(CATALOGUE, "default"),
        "reload": of.check_reload,
        "create": lambda: of.creating(CATALOGUE, "new", {}, 0),
    }
    try:
        checks[what]()
    except NotAllowed:
        return True
    return False


@pytest.mark.parametrize(
    ("uid", "allowed"),
    [
        (OWN, {"change", "change the operator's", "delete", "delete another", "reload", "create"}),
        (ROOT, {"change", "change the operator's", "delete", "delete another", "reload", "create"}),
        (OWNER, {"change", "delete"}),
        (USER, set()),
        (STRANGER, set()),
    ],
)
def test_requests_of_every_kind_of_user(uid: int, allowed: set[str]) -> None:
    every = {"change", "change the operator's", "delete", "delete another", "reload", "create"}
    assert {what for what in every if not is_refused(uid, what)} == allowed


@pytest.mark.parametrize(
    ("uid", "seen"), [(OWN, ["default", "clicks"]), (OWNER, ["clicks"]), (USER, ["clicks"]), (STRANGER, [])]
)
def test_what_users_see(uid: int, seen: list[str]) -> None:
    assert [name for name, topic in CATALOGUE.topics.items() if rights(uid).sees(topic.settings)] == seen


def test_what_is_the_operators_is_marked_and_the_rest_is_the_owners() -> None:
    marked = {key for key, setting in settings_of(Scope.TOPIC).items() if setting.operators}
    of_the_archive = {"archive.enabled", "archive.require", "archive.max_delay", "archive.expire"}
    of_the_archive |= {"archive.commit_interval"}
    of_the_cold_disk = {"tier.cold_dir", "tier.cold_cap", "tier.keep_hot", "tier.keep_hot_size"}
    of_the_disk = {"retention.cap_share", "retention.min_free", "retention.quarantine_cap"}
    assert marked == {"owner", "priority"} | of_the_disk | of_the_cold_disk | of_the_archive
    for key in settings_of(Scope.TOPIC):
        if key in marked:
            with pytest.raises(NotAllowed, match=key):
                rights(OWNER).check_change(CATALOGUE, "clicks", [key])
        else:
            rights(OWNER).check_change(CATALOGUE, "clicks", [key])


def test_a_topic_that_may_not_be_seen_is_refused_in_the_words_of_one_that_is_not_there() -> None:
    said = []
    for topic in ("default", "nothing"):
        with pytest.raises(NotAllowed) as raised:
            rights(USER).check_delete(CATALOGUE, topic)
        said.append(str(raised.value).replace(topic, "TOPIC"))
    assert said[0] == said[1]


def test_a_user_creates_topics_of_its_own_up_to_its_quota(tmp_path: Path) -> None:
    resolved = resolve(None, environment={})
    catalogue = configured(CATALOGUE, resolved, (), iter(["i"]), 1, live=False)
    for number in range(2):
        values = rights(STRANGER).creating(catalogue, f"mine-{number}", {"durability": "segment_only"}, 2)
        catalogue = created(catalogue, resolved, f"mine-{number}", values, "i", 2)
    assert catalogue.topics["mine-1"].settings.owner_uid == STRANGER
    with pytest.raises(QuotaExceeded, match="may own 2"):
        rights(STRANGER).creating(catalogue, "mine-2", {}, 2)
    rights(STRANGER).check_delete(catalogue, "mine-0")
    catalogue = deleted(catalogue, resolved, "mine-0", 3)
    assert rights(STRANGER).sees_deletion(catalogue.deletions[0])
    assert not rights(USER).sees_deletion(catalogue.deletions[0])
    rights(STRANGER).creating(catalogue, "mine-2", {}, 2)


@pytest.mark.parametrize(
    ("topic", "values"), [("clicks-dead", {}), ("new", {"owner": STRANGER}), ("new", {"priority": 100})]
)
def test_what_a_user_may_not_create(topic: str, values: dict[str, int]) -> None:
    with pytest.raises(NotAllowed):
        rights(STRANGER).creating(CATALOGUE, topic, values, 10)
