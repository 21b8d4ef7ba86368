"""The supervisor with real processes: forks, kills, stops, and what it leaves behind."""

from __future__ import annotations

import os
import resource
import signal
import socket

import pytest

from quiver_actors.shm.counters import CountersPage
from quiver_actors.supervisor import control
from quiver_actors.supervisor.spec import MILLISECOND_NS
from tests.integration.node_process import (
    Directories,
    NodeProcess,
    command_line,
    named_memory,
    wait_until_dead,
)
from tests.integration.supervised import failing_after, left_in, patience

# --- start and stop ------------------------------------------------------------------------------------------------------


def test_workers_are_pinned_round_robin_to_the_affinity_mask(directories: Directories) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cores = len(allowed) + 1
    with NodeProcess.small(directories, cores=cores).wait_ready() as node:
        pinned = [os.sched_getaffinity(pid) for pid in node.worker_pids()]
        assert pinned == [{allowed[core % len(allowed)]} for core in range(cores)]
        assert os.sched_getaffinity(node.pid) == set(allowed)
        assert node.stop() == 0


def test_cores_zero_means_one_worker_per_allowed_core(directories: Directories) -> None:
    with NodeProcess.small(directories, cores=0).wait_ready() as node:
        assert len(node.worker_pids()) == len(os.sched_getaffinity(0))
        assert len(directories.record()["cores"]) == len(os.sched_getaffinity(0))


def test_node_record_says_where_everything_is(directories: Directories) -> None:
    with NodeProcess.small(directories).wait_ready() as node:
        record = directories.record()
        assert record["version"] == 1
        assert record["pid"] == node.pid
        assert record["data_dir"] == str(directories.data)
        assert record["cores"] == [{"core": 0, "socket": "core_0.sock"}, {"core": 1, "socket": "core_1.sock"}]
        assert record["topics"] == ["default", "clicks"]
        assert named_memory(record["counters"]).exists()
        assert (directories.run / "node.json").stat().st_mode & 0o777 == 0o600
        assert directories.run.stat().st_mode & 0o777 == 0o700
        assert directories.data.stat().st_mode & 0o777 == 0o700
        assert (directories.run / "supervisor.sock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_drains_and_leaves_nothing(directories: Directories, number: signal.Signals) -> None:
    with NodeProcess.small(directories).wait_ready() as node:
        counters = directories.record()["counters"]
        node.signal(number)
        exit_code, printed = node.end()
        assert exit_code == 0
        assert printed.startswith("quiver ready: ")
        assert len(printed.splitlines()) == 1
        assert node.logged().count('status="exit 0 (drained)"') == 2
        assert left_in(directories) == []
        assert not named_memory(counters).exists()


def test_interrupt_of_the_whole_terminal_group_still_drains(directories: Directories) -> None:
    """Ctrl-C reaches the workers too: they must leave it to the supervisor."""
    with NodeProcess.small(directories).wait_ready() as node:
        os.killpg(node.pid, signal.SIGINT)
        assert node.end()[0] == 0
        assert node.logged().count('status="exit 0 (drained)"') == 2


def test_second_interrupt_stops_at_once(directories: Directories) -> None:
    with NodeProcess.small(directories, "never_drain").wait_ready() as node:
        pids = node.worker_pids()
        node.signal(signal.SIGINT)
        node.wait_for("node.drain")
        node.signal(signal.SIGINT)
        assert node.end()[0] == 130
        wait_until_dead(pids)
        assert left_in(directories) == []


def test_drain_that_does_not_end_is_killed(directories: Directories) -> None:
    limited = patience(drain_timeout_ns=200 * MILLISECOND_NS)
    with NodeProcess.small(directories, "never_drain", patience=limited).wait_ready() as node:
        assert node.stop() == 1
        assert "quiver.node.drain_timeout waiting_for=core_0,core_1" in node.logged()


def test_crash_while_draining_is_not_a_clean_end(directories: Directories) -> None:
    with NodeProcess.small(directories, "crash_while_draining").wait_ready() as node:
        assert node.stop() == 1


def test_hangup_without_a_configuration_changes_nothing(directories: Directories) -> None:
    with NodeProcess.small(directories).wait_ready() as node:
        node.signal(signal.SIGHUP)
        assert " changes=0 " in node.wait_for("node.reloaded")
        assert [child.state for child in node.status().children] == ["ready", "ready"]
        assert node.stop() == 0


def test_a_hangup_while_the_configuration_is_being_read_is_for_the_node_that_it_makes(directories: Directories) -> None:
    """Regression: the hangup ended `quiver up`."""
    config = directories.base / "quiver.toml"
    os.mkfifo(config)
    where = ("--data-dir", str(directories.data), "--run-dir", str(directories.run), "--cores", "1")
    command = command_line("quiver_actors.cli.main", "up", "--config", str(config), *where)
    with NodeProcess(command, directories.run) as node:
        with config.open("w") as writer:
            node.signal(signal.SIGHUP)
            config.unlink()
            config.write_text("")
            writer.write("")
        node.wait_for("node.reloaded")
        node.wait_ready()
        assert node.stop() == 0


def test_stopped_worker_is_continued_so_that_it_can_drain(directories: Directories) -> None:
    with NodeProcess.small(directories).wait_ready() as node:
        os.kill(node.worker_pids()[0], signal.SIGSTOP)
        node.wait_for("worker.suspended", "worker=core_0")
        assert node.stop() == 0


# --- readiness -----------------------------------------------------------------------------------------------------------


def test_readiness_waits_for_the_last_worker(directories: Directories) -> None:
    directories.data.mkdir()
    os.mkfifo(directories.data / "go")
    with NodeProcess.small(directories, "last_core_waits") as node:
        node.wait_for("worker.ready", "worker=core_0")
        assert not node.comes_within("node.ready", 0.3)
        assert node.status().state == "starting"
        (directories.data / "go").write_bytes(b".")
        node.wait_for("node.ready", "state=READY")
        assert node.stop() == 0


def test_readiness_is_told_to_the_service_manager(directories: Directories) -> None:
    address = directories.base / "notify"
    environment = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "100000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(30)
        manager.bind(str(address))
        with NodeProcess.small(directories, environment=environment) as node:
            told = [manager.recv(4096)]
            while not told[-1].startswith(b"READY=1"):
                told.append(manager.recv(4096))
            assert set(told[:-1]) <= {b"WATCHDOG=1"}
            assert manager.recv(4096) == b"WATCHDOG=1"
            node.signal(signal.SIGTERM)
            while (message := manager.recv(4096)) != b"STOPPING=1":
                assert message == b"WATCHDOG=1"
            assert node.end()[0] == 0


# --- restarts ------------------------------------------------------------------------------------------------------------


def test_killed_worker_comes_back_with_a_new_generation(directories: Directories) -> None:
    with NodeProcess.small(directories).wait_ready() as node:
        first, second = node.worker_pids()
        os.kill(first, signal.SIGKILL)
        node.wait_for("worker.exit", "worker=core_0", "status=SIGKILL")
        node.wait_for("worker.backoff", "worker=core_0", "delay_ms=20")
        node.wait_for("worker.ready", "worker=core_0")
        again, same = node.status().children
        assert same.pid == second
        assert again.pid not in (first, 0)
        assert (again.restarts, again.last_exit, again.state) == (1, "SIGKILL", "ready")
        page = CountersPage.attach(directories.record()["counters"])
        assert [region.generation for region in page.read()] == [1, 2, 1]
        page.close()
        assert node.stop() == 0


def test_supervisor_without_a_descriptor_left_goes_on_and_brings_its_workers_back(directories: Directories) -> None:
    with NodeProcess.small(directories, patience=failing_after(1000)).wait_ready() as node:
        first, second = node.worker_pids()
        _, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (0, hard))
        os.kill(first, signal.SIGKILL)
        node.wait_for("worker.fork_failed", "worker=core_0")
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (hard, hard))
        node.wait_for("worker.ready", "worker=core_0")
        again, same = node.worker_pids()
        assert again != first
        assert same == second
        assert node.stop() == 0


def test_backoff_doubles_while_a_worker_keeps_dying(directories: Directories) -> None:
    with NodeProcess.small(directories, "first_core_crashes", patience=failing_after(20)) as node:
        for delay_ms in (20, 40, 80, 100, 100):
            node.wait_for("worker.backoff", "worker=core_0", f"delay_ms={delay_ms}")


def test_worker_that_keeps_dying_is_failed_while_the_others_go_on(directories: Directories) -> None:
    with NodeProcess.small(directories, "first_core_crashes", patience=failing_after(3)) as node:
        node.wait_for("worker.failed", "worker=core_0", "deaths=4")
        node.wait_for("node.ready", "state=DEGRADED", "failed=core_0")
        assert [child.state for child in node.status().children] == ["failed", "ready"]
        assert not node.comes_within("worker.start", 0.3)
        assert node.stop() == 0


@pytest.mark.parametrize(("worker", "said"), [("crash", "cannot live"), ("cannot_open", "exit 4 (cannot_open)")])
def test_all_workers_failed_ends_the_node(directories: Directories, worker: str, said: str) -> None:
    with NodeProcess.small(directories, worker, patience=failing_after(1)) as node:
        exit_code, printed = node.end()
        assert exit_code == 5
        assert printed == ""
        assert said in node.logged()
        assert left_in(directories) == []


def test_hung_worker_is_aborted_shows_its_stack_and_comes_back(directories: Directories) -> None:
    limited = patience(heartbeat_timeout_ns=1000 * MILLISECOND_NS)
    with NodeProcess.small(directories, "hang_once", patience=limited).wait_ready() as node:
        node.wait_for("worker.hung", "worker=core_0")
        node.wait_for("worker.exit", "worker=core_0", "status=SIGABRT")
        assert "in hang" in node.logged()
        node.wait_for("worker.ready", "worker=core_0")
        assert node.stop() == 0


def test_hung_worker_that_does_not_abort_is_killed(directories: Directories) -> None:
    limited = patience(heartbeat_timeout_ns=1000 * MILLISECOND_NS)
    with NodeProcess.small(directories, "hang_deaf_to_abort", cores=1, patience=limited).wait_ready() as node:
        node.wait_for("worker.hung")
        node.wait_for("worker.kill")
        node.wait_for("worker.exit", "status=SIGKILL")
        node.wait_for("worker.ready")
        assert node.stop() == 0


def test_stopped_worker_is_reported_but_not_killed(directories: Directories) -> None:
    limited = patience(heartbeat_timeout_ns=1000 * MILLISECOND_NS)
    with NodeProcess.small(directories, cores=1, patience=limited).wait_ready() as node:
        pids = node.worker_pids()
        os.kill(pids[0], signal.SIGSTOP)
        node.wait_for("worker.suspended")
        assert not node.comes_within("worker.hung", 2.0)
        os.kill(pids[0], signal.SIGCONT)
        node.wait_for("worker.resumed")
        assert node.worker_pids() == pids
        assert node.stop() == 0


# --- a killed supervisor -------------------------------------------------------------------------------------------------


def test_workers_die_with_a_killed_supervisor(directories: Directories) -> None:
    with NodeProcess.small(directories).wait_ready() as node:
        pids = node.worker_pids()
        os.kill(pids[0], signal.SIGSTOP)
        node.signal(signal.SIGKILL)
        wait_until_dead(pids)


def test_leftovers_of_a_killed_supervisor_are_swept_by_the_next(directories: Directories) -> None:
    with NodeProcess.small(directories).wait_ready() as node:
        old = directories.record()["counters"]
        node.signal(signal.SIGKILL)
        node.end()
    assert left_in(directories) == ["core_0.sock", "core_1.sock", "node.json", "supervisor.sock"]
    assert named_memory(old).exists()
    with NodeProcess.small(directories, cores=1).wait_ready() as node:
        assert not named_memory(old).exists()
        assert directories.record()["counters"] != old
        assert left_in(directories) == ["core_0.sock", "node.json", "supervisor.sock"]
        assert node.stop() == 0
    assert left_in(directories) == []


def test_next_supervisor_waits_for_the_workers_of_a_killed_one(directories: Directories) -> None:
    """The data directory is free only when its last worker is gone, so the next node can start at the very moment of the kill."""
    with NodeProcess.small(directories, cores=8).wait_ready() as first:
        first.signal(signal.SIGKILL)
        with NodeProcess.small(directories).wait_ready() as second:
            assert second.stop() == 0


# --- control socket ------------------------------------------------------------------------------------------------------


def test_control_ping_drain_and_stop(directories: Directories) -> None:
    path = str(directories.run / control.SOCKET_NAME)
    with NodeProcess.small(directories).wait_ready() as node:
        assert control.request(path, control.Ping()) == control.Pong(pid=node.pid)
        assert control.request(path, control.Drain()) == control.Accepted()
        assert node.end()[0] == 0
    with NodeProcess.small(directories, "never_drain").wait_ready() as node:
        assert control.request(path, control.Stop()) == control.Accepted()
        assert node.end()[0] == 130


def test_control_drain_of_a_node_that_drains_is_no_second_signal(directories: Directories) -> None:
    """A second drain request changes nothing; it used to kill the workers that the first one waited for."""
    path = str(directories.run / control.SOCKET_NAME)
    with NodeProcess.small(directories, "never_drain").wait_ready() as node:
        for request in (control.Drain(), control.Drain(), control.Stop()):
            assert control.request(path, request) == control.Accepted()
        assert node.end()[0] == 130
        assert 'event=quiver.node.kill reason="control stop"' in node.logged()


def test_control_survives_peers_that_talk_nonsense(directories: Directories) -> None:
    path = str(directories.run / control.SOCKET_NAME)
    with NodeProcess.small(directories).wait_ready() as node:
        for nonsense in (b"", b"\xff\xff\xff\xff", b"\x00\x01\x00\x00half"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.connect(path)
                peer.sendall(nonsense)
        assert control.request(path, control.Ping()) == control.Pong(pid=node.pid)
        assert node.stop() == 0
