"""Decisions in an object store: whoever creates the object has decided, whatever answers are lost, and whoever else only has Arrow."""

from __future__ import annotations

import multiprocessing
import random
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow.fs as fs
import pytest

from quiver_actors.errors import DecisionUnavailable, TransactionAborted
from quiver_actors.store.objects.errors import ArchiveUnavailable
from quiver_actors.store.objects.object_store import (
    Found,
    ObjectChanged,
    ObjectExists,
    ObjectInfo,
    ObjectStore,
    Version,
)
from quiver_actors.store.objects.opening import open_store
from quiver_actors.store.objects.patience import Patience
from quiver_actors.transactions import Decision, Decisions
from quiver_actors.transactions.arrow_files import ArrowFiles
from quiver_actors.transactions.claims import Patience as ClaimPatience
from quiver_actors.transactions.decision_files import DecisionFiles
from quiver_actors.transactions.log_record import CLAIMED, CREATED, PREPARING, RECORD, how_made
from quiver_actors.transactions.store_files import StoreFiles
from tests.support.faulty_objects import FAULTS, FaultyStore
from tests.support.object_store import object_store
from tests.unit.transactions.turns import DECIDERS, Killed, SteppedStore, Turns, run_together

T = TypeVar("T")
NAME = "t.0.json"
ONCE = Patience(0.0, 0.0, 0.0)
"""No second try."""
SOON = Patience(60.0, 0.0, 0.0)
BY_ARROW, BY_STORE = "by Arrow", "by the store"


class SteppedObjects:
    """The files of a `SteppedStore` through conditional puts. Each call is one step, and its answer may be lost."""

    url = "stepped://log"

    def __init__(self, files: dict[str, bytes], turns: Turns, losses: float, seed: int) -> None:
        self._files = files
        self._turns = turns
        self._losses = losses
        self._chance = random.Random(seed)

    def _call(self, action: Callable[[], T]) -> T:
        found = self._turns.step(action)
        if self._chance.random() < self._losses:
            raise ArchiveUnavailable("the answer was lost")
        return found

    def get(self, key: str) -> Found | None:
        content = self._call(lambda: self._files.get(f"log/{key}"))
        return None if content is None else Found(content, Version(content.hex()))

    def create(self, key: str, content: bytes) -> Version:
        return self._call(lambda: self._put(key, content, None))

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        return self._call(lambda: self._put(key, content, version))

    def _put(self, key: str, content: bytes, version: Version | None) -> Version:
        found = self._files.get(f"log/{key}")
        if version is None and found is not None:
            raise ObjectExists(key)
        if version is not None and (found is None or found.hex() != version.etag):
            raise ObjectChanged(key)
        self._files[f"log/{key}"] = content
        return Version(content.hex())

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        names = self._call(lambda: [name for name in self._files if name.startswith(f"log/{prefix}/")])
        return iter([ObjectInfo(name.removeprefix("log/"), 0, "") for name in names])


def decide(
    seed: int, kinds: tuple[str, ...], kills: float = 0.0, losses: float = 0.0
) -> tuple[list[bytes], dict[str, bytes]]:
    """What those heard who came to an end, and the objects that are left. Killed processes count as dead at once."""
    turns, files = Turns(seed, kills), dict[str, bytes]()
    heard: list[bytes] = []
    patience = ClaimPatience(0, 0.3, 0) if kills else ClaimPatience(60, 60, 0)

    def files_of(number: int) -> DecisionFiles:
        claims = ArrowFiles("", opened=(fs.PyFileSystem(SteppedStore(files, turns)), "log"), patience=patience)
        if kinds[number] == BY_ARROW:
            return claims
        store: ObjectStore = SteppedObjects(files, turns, losses, seed * DECIDERS + number)  # type: ignore[assignment]
        return StoreFiles("", store=store, by_claims=claims, patience=SOON)

    def run(number: int) -> None:
        try:
            log = files_of(number)
            log.create(NAME, b"%d" % number)
            found = log.read(NAME)
            assert found is not None
            heard.append(found)
        except (Killed, OSError):
            pass
        finally:
            turns.leave()

    run_together(run, DECIDERS)
    return heard, files


@pytest.mark.parametrize("seed", range(40))
def test_all_hear_the_same_although_answers_are_lost(seed: int) -> None:
    heard, files = decide(seed, (BY_STORE,) * DECIDERS, losses=0.2)
    assert len(heard) == DECIDERS
    assert set(heard) == {files[f"log/{NAME}"]}
    assert how_made(files[f"log/{RECORD}"]) == CREATED
    assert not [name for name in files if "_claims" in name]


@pytest.mark.parametrize("seed", range(40))
def test_kills_at_any_step_leave_one_answer(seed: int) -> None:
    heard, files = decide(seed, (BY_STORE,) * DECIDERS, kills=0.05, losses=0.2)
    assert len(set(heard)) <= 1
    assert set(heard) <= {files.get(f"log/{NAME}", b"")}


def test_processes_that_have_only_arrow_never_decide_beside_others() -> None:
    """Which of the two ways a log goes depends on who came first; that there is one of them does not."""
    ways = set()
    for seed in range(60):
        heard, files = decide(seed, (BY_ARROW, BY_STORE, BY_STORE), losses=0.1)
        assert set(heard) == {files[f"log/{NAME}"]}
        assert len(heard) >= 2, "who has conditional puts always decides"
        ways.add(how_made(files[f"log/{RECORD}"]))
    assert ways == {CREATED, CLAIMED}


def test_kills_among_both_kinds_leave_one_answer() -> None:
    for seed in range(60):
        heard, files = decide(seed, (BY_ARROW, BY_STORE, BY_ARROW), kills=0.03)
        assert len(set(heard)) <= 1
        assert set(heard) <= {files.get(f"log/{NAME}", b"")}


@pytest.mark.parametrize("made", [CREATED, PREPARING])
def test_a_claim_that_comes_behind_the_record_decides_nothing(made: str) -> None:
    class SettledMeanwhile(SteppedStore):
        """Files among which the record appears just before the first claim."""

        def put(self, path: str, content: bytes) -> None:
            if path.endswith(".claim"):
                self.files[f"log/{RECORD}"] = b'{"made": "%s"}' % made.encode()
            super().put(path, content)

    files = dict[str, bytes]()
    handler = SettledMeanwhile(files, Turns(0, 0.0, alive=1))
    log = ArrowFiles("", opened=(fs.PyFileSystem(handler), "log"), patience=ClaimPatience(60, 60, 0))
    with pytest.raises(OSError, match="conditional puts"):
        log.create(NAME, b"mine")
    assert f"log/{NAME}" not in files


def memory() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


def outcome(log: Decisions, *, is_commit: bool) -> Decision | None:
    """The decision that a process heard; None if it was told that there is none to be had now."""
    try:
        return log.commit("t", 0, []) if is_commit else log.abort("t", 0)
    except DecisionUnavailable:
        return None
    except TransactionAborted:
        found = log.newest("t")
        assert found is not None
        return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_call_that_fails_decides_nothing_twice(fault: str) -> None:
    counted = FaultyStore(memory())
    assert outcome(Decisions("log", files=StoreFiles("log", store=counted)), is_commit=True)
    assert len(counted.calls) >= 8
    for number in range(len(counted.calls)):
        store = memory()
        impatient = Decisions("log", files=StoreFiles("log", store=FaultyStore(store, number, fault), patience=ONCE))
        heard = outcome(impatient, is_commit=True)
        other = outcome(Decisions("log", files=StoreFiles("log", store=store)), is_commit=False)
        assert other is not None
        assert heard in (None, other), f"call {number}, {counted.calls[number]}"
        assert outcome(impatient, is_commit=True) == other
        patient = Decisions("log", files=StoreFiles("log", store=FaultyStore(store, number, fault), patience=SOON))
        assert outcome(patient, is_commit=True) == other


def test_a_log_that_was_begun_with_claims_goes_on_with_them() -> None:
    with object_store() as store:
        before = Decisions(store.uri("log")).commit("t", 0, [])
        log = Decisions(store.url("log", "s3a"))
        assert log.find("t") == before
        assert log.commit("u", 0, []) == Decisions(store.uri("log")).abort("u", 0)
        assert [name for name in store.names() if name.startswith("log/_claims/u.0.json/")]
        assert how_made(store.objects[f"log/{RECORD}"].content) == CLAIMED
        for txn_id in ("t", "u"):
            log.remove(txn_id)
        assert store.names() == [f"log/{RECORD}"]


def test_who_has_only_arrow_is_refused_in_a_log_of_conditional_puts_and_reads_it() -> None:
    with object_store() as store:
        decided = Decisions(store.url("log")).commit("t", 0, [])
        log = Decisions(store.uri("log"))
        assert log.find("t") == decided
        with pytest.raises(DecisionUnavailable, match="conditional puts, which Arrow does not have") as raised:
            log.abort("u", 0)
        assert "key:secret" in log.location
        assert "secret" not in f"{raised.value}{log!r}"
        assert store.names() == [f"log/{RECORD}", "log/t.0.json"]


def test_a_store_that_ignores_conditions_is_refused_unless_claims_were_asked_for_by_name() -> None:
    with object_store() as store:
        store.keeps_conditions = False
        log = Decisions(store.url("log"))
        with pytest.raises(DecisionUnavailable, match="does not keep the condition If-None-Match"):
            log.commit("t", 0, [])
        assert log.find("t") is None
        open_store(store.url("log")).put(RECORD, [b'{"made": "claimed"}'], 19)
        assert Decisions(store.url("log")).commit("t", 0, []).is_commit
        assert [name for name in store.names() if name.startswith("log/_claims/t.0.json/")]


@pytest.mark.parametrize("content", [b"", b'{"made": "created", "v": 2}', b'{"made": "somehow"}', b"\xff"])
def test_a_record_that_is_not_understood_decides_nothing(content: bytes) -> None:
    with object_store() as store:
        open_store(store.url("log")).put(RECORD, [content], len(content))
        for log in (Decisions(store.url("log")), Decisions(store.uri("log"))):
            with pytest.raises(DecisionUnavailable, match=RECORD):
                log.abort("t", 0)
        assert store.names() == [f"log/{RECORD}"]


def test_an_outage_is_told_and_passes() -> None:
    with object_store() as store:
        store.close()
        log = Decisions(store.url("log"), files=StoreFiles(store.url("log"), patience=ONCE))
        with pytest.raises(DecisionUnavailable, match="s3://bucket/log cannot be used"):
            log.commit("t", 0, [])
    faulty = FaultyStore(memory(), 3)
    assert Decisions("log", files=StoreFiles("log", store=faulty, patience=SOON)).commit("t", 0, []).is_commit
    assert len(faulty.calls) > 4


def _ask(place: str, answers: object) -> None:
    try:
        Decisions(place).find("t")
        answers.put("")  # type: ignore[attr-defined]
    except DecisionUnavailable as error:
        answers.put(str(error))  # type: ignore[attr-defined]


def test_a_child_that_was_forked_after_the_first_request_is_told() -> None:
    """Its requests would never be sent, and no timeout would end them."""
    context = multiprocessing.get_context("fork")
    with object_store() as store:
        Decisions(store.url("log")).abort("t", 0)
        answers = context.Queue()
        child = context.Process(target=_ask, args=(store.url("log"), answers))
        child.start()
        answer = answers.get(timeout=30)
        child.join(30)
    assert "forked" in answer
