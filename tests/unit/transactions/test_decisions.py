"""The decision log: the first to decide an epoch decides it, for ever and for everybody."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from quiver_actors.errors import DecisionUnavailable, InvalidId, TransactionAborted, TransactionDecided, UsageError
from quiver_actors.store.disk.exclusive import temporary_name
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.transactions import Decision, Decisions, Token
from quiver_actors.transactions.decision_files import LEFT_OVER_AFTER_SECONDS, DecisionFiles
from quiver_actors.transactions.local_files import LocalFiles
from tests.disks.crashes import CrashMode
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.recorder import Recorder
from tests.support.object_store import object_store


def token(number: int, *, txn_id: str = "t", epoch: int = 0, lives_seconds: float = 3600) -> Token:
    expires_unix_ns = time.time_ns() + round(lives_seconds * 1e9)
    return Token(txn_id, epoch, number, 0, "node-a", "default", 0, "ab" * 16, number, 3, 30, 4096, expires_unix_ns)


FILES = ("local", "Arrow")
KINDS = (*FILES, "object store")


@pytest.fixture(params=KINDS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Decisions]:
    """A decision log on a local path, one where files cannot be made exclusively, and one with conditional puts."""
    if request.param == "local":
        yield Decisions(str(tmp_path / "deep" / "decisions"))
        return
    with object_store() as store:
        yield Decisions((store.uri if request.param == "Arrow" else store.url)("deep/decisions"))


def test_a_commit_stands(log: Decisions) -> None:
    assert log.find("t") is None
    assert log.open_epoch("t") == 0
    decision = log.commit("t", 0, [token(1), token(2)])
    assert decision.is_commit
    assert log.find("t") == decision
    assert log.commit("t", 0, [token(7)]) == decision, "another run hears what was decided first"
    assert log.abort("t", 0) == decision, "what was committed cannot be aborted"
    assert [decision.lists("ab" * 16, number) for number in (1, 2, 7)] == [True, True, False]
    assert not decision.lists("cd" * 16, 1), "a token of another directory"
    with pytest.raises(TransactionDecided, match="committed before, in epoch 0"):
        log.open_epoch("t")


def test_an_abort_ends_its_epoch_only(log: Decisions) -> None:
    assert log.abort("t", 0).outcome == "abort"
    with pytest.raises(TransactionAborted, match="in epoch 1"):
        log.commit("t", 0, [token(1)])
    assert log.open_epoch("t") == 1
    assert log.find("t") is None
    committed = log.commit("t", 1, [token(2, epoch=1)])
    assert log.decided("t", 0) is not None
    assert log.decided("t", 1) == committed
    assert log.decided("t", 2) == committed, "a later epoch is decided by the commit of an earlier one"
    assert log.abort("t", 2) == committed


def test_undecided_is_none(log: Decisions) -> None:
    assert log.decided("t", 0) is None
    log.commit("t", 0, [])
    assert log.find("t.1") is None, "ids that begin alike are other transactions"
    log.remove("t")
    assert log.find("t") is None


@pytest.mark.parametrize("log", FILES, indirect=True)
def test_what_killed_processes_have_left_is_swept(log: Decisions) -> None:
    log.commit("t", 0, [])
    files, hour = log._files, LEFT_OVER_AFTER_SECONDS
    old, new = (temporary_name("u.0.json", f"{int(time.time()) - age:08x}-{'5' * 16}") for age in (hour + 9, hour - 60))
    mine = "notes.of.somebody.tmp"
    for name in (old, new, mine):
        files.create(name, b"half a decision")
    again = Decisions(log.location, files=files_of(log))
    assert again.newest("t") is not None
    assert files.read(old) is not None, "who reads deletes nothing"
    again.abort("v", 0)
    assert [files.read(name) is None for name in (old, new, mine)] == [True, False, False]


def files_of(log: Decisions) -> DecisionFiles:
    """Return the decision files as another process sees them."""
    files = copy.copy(log._files)
    files._has_swept = False  # type: ignore[attr-defined]
    return files


def test_tokens_of_another_transaction_are_refused(log: Decisions) -> None:
    for wrong in (token(1, txn_id="u"), token(1, epoch=3)):
        with pytest.raises(UsageError, match="token of another transaction"):
            log.commit("t", 0, [wrong])
    with pytest.raises(InvalidId):
        log.commit("../t", 0, [])


@pytest.mark.parametrize(("kind", "left"), [("uri", []), ("url", ["log/_log.json"])])
def test_an_object_store_hears_one_decision_of_several_at_once(kind: str, left: list[str]) -> None:
    """Two drivers and a worker that aborts. Arrow's client of S3 replaces what is there: the last to write must not be who decides."""
    with object_store() as store, ThreadPoolExecutor(3) as threads:
        for txn in range(3):
            # Of Spark, who has another name for it.
            logs = [Decisions(getattr(store, kind)("log", scheme)) for scheme in ("s3", "s3a", "s3")]
            together = threading.Barrier(3)
            heard = [
                threads.submit(_decide_at_once, log, f"t{txn}", number, together) for number, log in enumerate(logs)
            ]
            assert len({each.result(60) for each in heard}) == 1
            logs[0].remove(f"t{txn}")
        assert store.names() == left


def _decide_at_once(log: Decisions, txn_id: str, number: int, together: threading.Barrier) -> Decision:
    together.wait()
    try:
        return log.commit(txn_id, 0, [token(number, txn_id=txn_id)]) if number else log.abort(txn_id, 0)
    except TransactionAborted:
        found = log.decided(txn_id, 0)
        assert found is not None
        return found


def test_a_damaged_decision_decides_nothing(tmp_path: Path) -> None:
    log = Decisions(str(tmp_path))
    log.commit("t", 0, [token(1)])
    (tmp_path / "t.0.json").write_bytes(b'{"txn_id": ')
    with pytest.raises(DecisionUnavailable, match=r"t\.0\.json is not a decision"):
        log.find("t")
    (tmp_path / "t.0.json").write_bytes(b'{"txn_id": "\xff", "epoch": 0, "outcome": "commit"}')
    with pytest.raises(DecisionUnavailable, match=r"t\.0\.json is not a decision"):
        log.find("t")
    (tmp_path / "t.0.json").write_bytes(msgspec.json.encode(Decision("u", 0, "commit")))
    with pytest.raises(DecisionUnavailable, match="of another transaction or epoch"):
        log.find("t")


def test_a_log_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DecisionUnavailable, match="cannot be used"):
        Decisions(str(tmp_path / "file" / "decisions")).commit("t", 0, [])
    with pytest.raises(DecisionUnavailable, match="nosuch"):
        Decisions("nosuch://bucket/decisions").find("t")
    with pytest.raises(UsageError, match="absolute path"):
        Decisions("decisions")


def test_it_pickles_and_reads_file_uris(tmp_path: Path) -> None:
    Decisions(str(tmp_path / "a b")).commit("t", 0, [token(1)])
    found = pickle.loads(pickle.dumps(Decisions(f"file://{tmp_path}/a%20b"))).find("t")
    assert found is not None
    assert found.tokens[0].number == 1
    assert Token.decode(found.tokens[0].encode()) == found.tokens[0]
    with pytest.raises(UsageError, match="not a token"):
        Token.decode("{}")


def on(disk: Disk) -> Decisions:
    return Decisions("/decisions", files=LocalFiles("/decisions", disk))


def _decide(disk: Disk, heard: dict[str, Decision]) -> None:
    """Act as a driver or a worker; `heard` collects their answers until they end."""
    driver, worker = on(disk), on(disk)
    heard["commit"] = driver.commit("commit", 0, [token(1, txn_id="commit")])
    heard["abort"] = worker.abort("abort", 0)
    for txn_id in heard:
        assert worker.abort(txn_id, 0) == driver.newest(txn_id) == heard[txn_id]


def _moments() -> list[tuple[SimDisk, dict[str, Decision]]]:
    """The disk as it is before each call that changes it, and at the end, with what was heard by then."""
    disk, heard, moments = SimDisk(), dict[str, Decision](), list[tuple[SimDisk, dict[str, Decision]]]()
    _decide(OrderMonitor(Recorder(disk, lambda call: moments.append((disk.copy(), dict(heard))))), heard)
    return [*moments, (disk, heard)]


@pytest.mark.parametrize("mode", CrashMode)
def test_a_power_loss_at_any_call_leaves_every_decision_that_was_heard(mode: CrashMode) -> None:
    for seed, (disk, heard) in enumerate(_moments()):
        log = on(disk.crash(mode, seed))
        for txn_id in ("commit", "abort"):
            left = log.newest(txn_id)
            assert left == heard.get(txn_id, left), "a decision that was heard is gone, or another one"
            assert log.abort(txn_id, 0) == (left or log.newest(txn_id))


def test_a_decision_that_was_read_is_durable_although_who_made_it_died_before_it_was() -> None:
    """The publish that follows from it must not outlive it: the driver would run the transaction again."""
    made = next(disk for disk, _ in _moments() if disk.exists("/decisions/commit.0.json"))
    assert on(made.crash(CrashMode.DROP)).newest("commit") is None, "only the cache has it"
    killed = made.crash(CrashMode.KEEP)
    found = on(killed).newest("commit")
    assert found is not None
    assert on(killed.crash(CrashMode.DROP)).newest("commit") == found


def _race(location: str, number: int, barrier: object, answers: object) -> None:
    log = Decisions(location)
    barrier.wait()  # type: ignore[attr-defined]
    outcomes = []
    for txn in range(30):
        try:
            decided = (
                log.abort(f"x{txn}", 0) if number == 0 else log.commit(f"x{txn}", 0, [token(number, txn_id=f"x{txn}")])
            )
            outcomes.append(decided.tokens[0].number if decided.tokens else 0)
        except TransactionAborted:
            outcomes.append(0)
    answers.put(outcomes)  # type: ignore[attr-defined]


def test_of_several_processes_one_decides(tmp_path: Path) -> None:
    """Two drivers and a worker that aborts, all at once: each hears the same decision."""
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(3), context.Queue()
    racers = [context.Process(target=_race, args=(str(tmp_path), number, barrier, answers)) for number in range(3)]
    for racer in racers:
        racer.start()
    heard = [answers.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(60)
    assert heard[0] == heard[1] == heard[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"x{txn}.0.json" for txn in range(30))
