"""The owner of the list of topics across crashes: a topic's life, with a power loss around every change of the disk, in every mode.

Whatever was answered holds after the crash; what was under way has happened or not; and no topic ever stands on the directory of an earlier
one of its name.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from quiver_actors.base.config.kinds import DURATION, INTEGER, SIZE
from quiver_actors.base.config.reading import resolve
from quiver_actors.base.config.table import Scope, settings_of
from quiver_actors.base.protocol import topic_requests as requests
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import ConfigError
from quiver_actors.node.composition import topic_keeper
from quiver_actors.node.topics.aside import ASIDE_PREFIX
from quiver_actors.node.topics.keeper import TopicKeeper
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import write_atomically
from quiver_actors.supervisor import spec
from tests.disks.simulated import SimDisk
from tests.unit.node.topics.test_catalogue import Crashing

NODE_UID = 0
_NUMBERS = {
    SIZE: ("9999999999TiB", f"{'9' * 400}B"),
    DURATION: ("999999999999d", f"{'9' * 400}ns"),
    INTEGER: ("99999999999999999999",),
}
"""Too large ones."""


def keeper_on(disk: SimDisk | Crashing) -> TopicKeeper:
    resolved = resolve(None, environment={})
    return TopicKeeper(disk, "no such directory", resolved, resolve=lambda: resolved, applied=dict)


def ask(keeper: TopicKeeper, request: requests.Request) -> requests.TopicReply:
    steward: spec.Steward = keeper
    answered = steward.answer(requests.SUBJECT, msgspec.msgpack.encode(request), NODE_UID)
    reply = msgspec.msgpack.decode(answered, type=requests.TopicReply)
    assert not reply.code, reply.error
    return reply


class Life:
    """What happens to topic `clicks`, and what must be true of every crash from then on."""

    def __init__(self) -> None:
        self.sim = SimDisk()
        self.disk = Crashing(self.sim, self.look)
        self.priorities: set[int | None] = {None}
        """What a crash now may find; None: no such topic."""
        self.looks = 0
        self.keeper = keeper_on(self.disk)

    def look(self, crashed: SimDisk) -> None:
        self.looks += 1
        keeper = keeper_on(crashed)
        topic = keeper.catalogue.topics.get("clicks")
        found = None if topic is None else topic.settings.priority
        assert found in self.priorities
        if topic is not None and crashed.exists("clicks"):
            assert crashed.list_directory("clicks/core_0") == [topic.incarnation]
        if topic is None and not keeper.catalogue.deletions:
            # A directory that nobody knows would be taken for a topic, with the bundles of one that was deleted.
            assert not crashed.exists("clicks")

    def ask(self, request: requests.Request, before: int | None, after: int | None) -> None:
        self.priorities = {before, after}
        ask(self.keeper, request)
        self.priorities = {after}

    def make_directory(self) -> None:
        """Make the directory that a worker makes once it follows the catalogue."""
        incarnation = self.keeper.catalogue.topics["clicks"].incarnation
        self.sim.make_directory("clicks/core_0")
        write_atomically(self.sim, f"clicks/core_0/{incarnation}", b"bundles")
        for directory in ("clicks/core_0", "clicks", "."):
            self.sim.sync_directory(directory)


def test_a_topics_life_survives_a_crash_around_every_change() -> None:
    life = Life()
    create = requests.Create(topic="clicks", values={"priority": 1})
    for _ in range(2):
        life.ask(create, None, 1)
        life.make_directory()
        life.ask(requests.Change(topic="clicks", values={"priority": 2}), 1, 2)
        life.ask(requests.Delete(topic="clicks"), 2, None)
        life.keeper.step(SECOND_NS)
        assert not life.keeper.catalogue.deletions
    assert sum(name.startswith(ASIDE_PREFIX) for name in life.sim.list_directory(".")) == 2
    assert life.looks > 1000


def test_a_directory_stays_until_every_worker_has_let_go_of_it() -> None:
    sim, applied = SimDisk(), {"core_0": 0}
    resolved = resolve(None, environment={})
    keeper = TopicKeeper(sim, "no such directory", resolved, resolve=lambda: resolved, applied=lambda: dict(applied))
    ask(keeper, requests.Create(topic="clicks"))
    sim.make_directory("clicks/core_0")
    ask(keeper, requests.Delete(topic="clicks"))
    keeper.step(SECOND_NS)
    assert sim.exists("clicks"), "a worker may have it open still"
    applied["core_0"] = keeper.catalogue.version
    keeper.step(2 * SECOND_NS)
    assert not sim.exists("clicks")


def test_what_cannot_be_removed_now_is_removed_later(tmp_path: Path) -> None:
    """The supervisor ended, and the node with it, at each start."""
    disk, aside = PosixDisk(str(tmp_path)), tmp_path / f"{ASIDE_PREFIX}clicks-00"
    resolved = resolve(None, environment={})
    keeper = TopicKeeper(disk, str(tmp_path), resolved, resolve=lambda: resolved, applied=dict)
    aside.write_text("no directory")
    due_ns = keeper.step(0)
    assert due_ns
    aside.unlink()
    (aside / "core_0").mkdir(parents=True)
    (aside / "core_0" / "segment").touch()
    while due_ns:
        due_ns = keeper.step(due_ns)
    assert not aside.exists()
    disk.close()


def test_a_change_has_to_suit_the_workers_that_run_where_the_configuration_does_not_say_how_many(
    tmp_path: Path,
) -> None:
    """Regression: the change was checked for one worker and stored, and the next start of the node refused it."""
    file = tmp_path / "quiver.toml"
    file.write_text("")
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    settings = msgspec.structs.replace(resolve(str(file), environment={}).settings, cores=2, data_dir=str(data_dir))
    with closing(PosixDisk(str(data_dir))) as disk:
        keeper = topic_keeper(disk, settings, lambda: resolve(str(file), environment={}), [])
        file.write_text("[retention]\nsize_cap = '160MiB'\n")
        with pytest.raises(ConfigError, match="for each of 2 workers"):
            keeper.read_again()
        assert keeper.settings.size_cap_bytes == 0
        file.write_text("[retention]\nsize_cap = '256MiB'\n")
        assert keeper.read_again() == ['retention.size_cap: "0B" to "256MiB": holds now']
        too_large = requests.Create(topic="big", values={"segment.target_size": "33MiB"})
        answered = keeper.answer(requests.SUBJECT, msgspec.msgpack.encode(too_large), NODE_UID)
        assert "for each of 2 workers" in msgspec.msgpack.decode(answered, type=requests.TopicReply).error


@pytest.mark.parametrize("key", [key for key, each in settings_of(Scope.TOPIC).items() if each.kind in _NUMBERS])
def test_a_number_that_nothing_can_hold_is_refused(key: str) -> None:
    """Regression: the number was stored, and answering with it ended the node: at once, and with every later `quiver topics list`."""
    keeper = keeper_on(SimDisk())
    for text in _NUMBERS[settings_of(Scope.TOPIC)[key].kind]:
        request = requests.Create(topic="clicks", values={key: text})
        answered = keeper.answer(requests.SUBJECT, msgspec.msgpack.encode(request), NODE_UID)
        assert key in msgspec.msgpack.decode(answered, type=requests.TopicReply).error
    assert "clicks" not in ask(keeper, requests.List()).topics
