"""`quiver metrics` beside real nodes: scraped by Prometheus, shown by a browser, alive when the node is not."""

from __future__ import annotations

import http.client
import json
import re
import select
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.client_node import ClientNode, node_fixture, numbers, take
from tests.integration.node_process import ROOT, Directories, NodeProcess, command_line, run_quiver

DEADLINE_SECONDS = 60.0


@contextmanager
def metrics_server(run_dir: Path) -> Iterator[str]:
    """`quiver metrics` on a free port; gives its base address."""
    command = command_line("quiver_actors.cli.main", "metrics", "--run-dir", str(run_dir), "--listen", "127.0.0.1:0")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], DEADLINE_SECONDS)[0], "the server does not start"
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield found.group()
        finally:
            process.terminate()
            assert process.wait(DEADLINE_SECONDS) == 0


def samples(address: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=DEADLINE_SECONDS) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(labels.items()))


def eventually(read: Any, holds: Any) -> Any:
    """Return what `read` returns once it `holds`."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds(found := read()):
        assert time.monotonic() < deadline, f"not in time: {found}"
        select.select([], [], [], 0.1)
    return found


node = node_fixture()


@pytest.fixture(scope="module")
def address(node: ClientNode) -> Iterator[str]:
    with metrics_server(node.directories.run) as started:
        yield started


def test_pushes_and_deliveries_show_in_metrics(node: ClientNode, address: str) -> None:
    with node.connect() as client, client.subscribe("watched", start="earliest") as subscription:
        for value in range(10):
            client.push(numbers(value))
        for delivery in take(subscription, 10, timeout=DEADLINE_SECONDS):
            delivery.ack()
        client.flush()  # deliveries wait for no seal
    ingested = of("quiver_ingest_bundles_total", topic="default", core="0")
    acked = of("quiver_subscriber_acked_bundles_total", topic="default", subscriber="watched", core="0")
    labels = [{"topic": "default", "core": "0", "of": what} for what in ("push", "sync", "seal", "deliver")]
    counts = [of("quiver_latency_seconds_count", **each) for each in labels]
    found = eventually(
        lambda: samples(address),
        lambda found: (
            found[ingested] >= 10 and found.get(acked, 0) >= 10 and all(found.get(count, 0) >= 1 for count in counts)
        ),
    )
    assert found["quiver_up", ()] == found["quiver_ready", ()] == 1
    for each in labels:
        assert found[of("quiver_latency_seconds_sum", **each)] > 0, each


def test_once_prints_the_same_metrics(node: ClientNode, address: str) -> None:
    done = run_quiver("metrics", "--once", "--run-dir", str(node.directories.run))
    assert (done.returncode, done.stderr) == (0, "")
    names = {family.name for family in text_string_to_metric_families(done.stdout)}
    with urllib.request.urlopen(f"{address}/metrics", timeout=DEADLINE_SECONDS) as answer:
        assert names == {family.name for family in text_string_to_metric_families(answer.read().decode())}


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: apt install prometheus")
def test_prometheus_scrapes_it(address: str, tmp_path: Path) -> None:
    host = address.removeprefix("http://")
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 1s}}\nrule_files: [{ROOT / 'quiver_actors/cli/web/alerts.yaml'}]\n"
        f"scrape_configs: [{{job_name: quiver, static_configs: [{{targets: ['{host}']}}]}}]\n"
    )
    with subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            port = listening_port(process)
            found = eventually(lambda: query(port, "quiver_up"), bool)
            assert found[0]["value"][1] == "1"
            assert query(port, "quiver_ingest_bundles_total")[0]["metric"]["topic"] in (
                "default",
                "travel",
                "other",
                "quick",
            )
        finally:
            process.terminate()
            process.communicate(timeout=DEADLINE_SECONDS)


def listening_port(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', line):
            return int(found.group(1))
    raise AssertionError("prometheus ended")


def query(port: int, expression: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
    try:
        connection.request("GET", f"/api/v1/query?query={expression}")
        answer = connection.getresponse()
        body = answer.read()
        # 503 while it starts.
        return json.loads(body)["data"]["result"] if answer.status == http.client.OK else []
    finally:
        connection.close()


def browsed(url: str, profile: Path) -> str:
    """The page as it stands when its scripts have shown a state: on a busy machine the browser may look before they have an answer."""
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=8000",
        f"--user-data-dir={profile}",
    )
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        done = subprocess.run(
            ["chromium", *options, "--dump-dom", url],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert "<html" in done.stdout, done.stderr[-2000:]
        if '<span id="state" class="state ' in done.stdout and ">unknown<" not in done.stdout:
            return done.stdout
        assert time.monotonic() < deadline, f"{url} shows no state:\n{done.stdout[-3000:]}"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium: apt install chromium")
def test_a_browser_shows_the_page(address: str, tmp_path: Path) -> None:
    page = browsed(address + "/", tmp_path)
    assert '<span id="state" class="state good">ready</span>' in page
    assert page.count('class="plot"') == 9
    assert "No size cap is set" in page
    assert 'data-label="worker">core_0</td>' in page
    assert re.search(
        r'href="#/topics/travel">travel</a></td><td class="state-cell good" data-label="state">ready</td>', page
    )
    assert page.index('id="topics"') < page.index('class="plot"'), "tables come before the plots"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium: apt install chromium")
@pytest.mark.parametrize(
    ("view", "shown"),
    [
        ("#/topics/travel", "Topic travel"),
        ("#/topics/travel/subscribers/nobody-such", "There is no subscriber nobody-such"),
    ],
)
def test_a_topic_and_a_subscriber_have_a_page(view: str, shown: str, address: str, tmp_path: Path) -> None:
    assert shown in browsed(f"{address}/{view}", tmp_path)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium: apt install chromium")
def test_the_page_of_a_dead_node_says_how_to_start_it_and_shows_no_figures(tmp_path: Path) -> None:
    directories = Directories()
    try:
        with NodeProcess.small(directories, "serve_with_figures").wait_ready() as node:
            node.signal(signal.SIGKILL)
        with metrics_server(directories.run) as address:
            page = browsed(address + "/", tmp_path)
    finally:
        directories.remove()
    assert '<span id="state" class="state bad">dead</span>' in page
    assert f"quiver up --data-dir {directories.data} --run-dir {directories.run}" in page
    assert "<table" not in page
    assert set(re.findall(r'class="now">([^<]*)<', page)) == {"-"}


def test_the_server_outlives_the_node() -> None:
    directories = Directories()
    try:
        with metrics_server(directories.run) as address:
            assert samples(address) == {("quiver_up", ()): 0}
            with NodeProcess.small(directories, "serve_with_figures").wait_ready() as node:
                assert samples(address)["quiver_up", ()] == 1
                node.stop()
            assert samples(address)["quiver_up", ()] == 0
    finally:
        directories.remove()
