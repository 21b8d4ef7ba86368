"""Agreeing without exclusive create: several deciders, one step of one of them at a time, in any order, some of them killed."""

from __future__ import annotations

import pyarrow.fs as fs
import pytest

from quiver_actors.transactions.arrow_files import ArrowFiles
from quiver_actors.transactions.claims import Patience
from tests.unit.transactions.turns import DECIDERS, Killed, SteppedStore, Turns, run_together


def decide(seed: int, kills: float, patience: Patience) -> tuple[list[bytes], dict[str, bytes]]:
    """What those heard who came to an end, and the files that are left."""
    turns, files = Turns(seed, kills), dict[str, bytes]()
    heard: list[bytes] = []

    def run(number: int) -> None:
        store = ArrowFiles("", opened=(fs.PyFileSystem(SteppedStore(files, turns)), "log"), patience=patience)
        try:
            store.create("t.0.json", b"%d" % number)
            found = store.read("t.0.json")
            assert found is not None
            heard.append(found)
        except (Killed, TimeoutError):
            pass
        finally:
            turns.leave()

    run_together(run, DECIDERS)
    return heard, files


@pytest.mark.parametrize("seed", range(60))
def test_all_hear_the_same(seed: int) -> None:
    heard, files = decide(seed, 0.0, Patience(veto_seconds=60, total_seconds=60, look_seconds=0))
    assert len(heard) == DECIDERS
    assert set(heard) == {files["log/t.0.json"]}


def scene(*names: str) -> ArrowFiles:
    """A log in which these claims were made, as (id.kind)."""
    files = {f"log/_claims/t.0.json/{name}": name.encode() for name in names}
    store = fs.PyFileSystem(SteppedStore(files, Turns(0, 0.0, alive=1)))
    return ArrowFiles("", opened=(store, "log"), patience=Patience(veto_seconds=60, total_seconds=0.2, look_seconds=0))


def test_who_comes_later_takes_what_stands() -> None:
    log = scene("x.claim", "x.stand", "a.claim", "a.yield", "y.claim", "y.stand", "0.claim", "0.veto")
    log.create("t.0.json", b"mine")
    assert log.read("t.0.json") == b"x.claim"


def test_nobody_decides_beside_one_who_may_still_stand() -> None:
    log = scene("b.claim", "b.stand", "a.claim")
    with pytest.raises(TimeoutError, match=r"claim a is not settled yet"):
        log.create("t.0.json", b"mine")
    assert log.read("t.0.json") is None


def test_who_stands_in_spite_of_a_veto_stops_everybody_until_somebody_looks() -> None:
    names = ("b.claim", "b.stand", "a.claim", "a.veto", "a.stand")
    log = scene(*names)
    with pytest.raises(TimeoutError, match=r"delete its \.stand file"):
        log.create("t.0.json", b"mine")
    decided = scene(*names[:-1])
    decided.create("t.0.json", b"mine")
    assert decided.read("t.0.json") == b"b.claim"


@pytest.mark.parametrize("seed", range(60))
def test_kills_and_vetoes_at_any_step_leave_one_answer(seed: int) -> None:
    """Everybody is taken for dead at once, whether he is or not: that may cost an answer, and never gives a second one."""
    heard, files = decide(seed, 0.03, Patience(veto_seconds=0, total_seconds=0.3, look_seconds=0))
    assert len(set(heard)) <= 1
    assert set(heard) <= {files.get("log/t.0.json", b"")}
