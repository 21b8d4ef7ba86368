from __future__ import annotations

from pathlib import Path

from quiver_actors.node.opened_directories import OpenedDirectories


def test_what_is_noted_is_known_to_later_workers_until_it_is_forgotten(tmp_path: Path) -> None:
    opened = OpenedDirectories(str(tmp_path))
    assert opened.all() == []
    for topic, core in (("clicks", 0), ("clicks", 12), ("views", 0), ("views", 0)):
        opened.note(topic, core)
    later = OpenedDirectories(str(tmp_path))
    assert later.all() == [("clicks", 0), ("clicks", 12), ("views", 0)]
    assert later.has("clicks", 12)
    assert not later.has("clicks", 1)
    later.forget("clicks", 12)
    assert opened.all() == [("clicks", 0), ("views", 0)]
    opened.forget("clicks")
    opened.forget("clicks")
    assert opened.all() == [("views", 0)]


def test_a_sweep_leaves_nothing(tmp_path: Path) -> None:
    opened = OpenedDirectories(str(tmp_path))
    opened.note("clicks", 0)
    assert (tmp_path / "opened").stat().st_mode & 0o077 == 0, "names of topics are nobody else's business"
    opened.sweep()
    opened.sweep()
    assert list(tmp_path.iterdir()) == []
