"""The page says what the lines say: medians, spread, ratios, losses, what was skipped, and on what machine."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from benchmarks.aims import AIMS
from benchmarks.report import page
from benchmarks.suite import MODULES

ROOT = Path(__file__).parents[2]
QUIET: dict[str, Any] = {
    "cores": 2,
    "busy_percent": 1,
    "load": 0.1,
    "fdatasync_p50_us": 90,
    "fdatasync_p99_us": 200,
    "filesystem": "ext4",
    "python": "3.11",
    "kernel": "6",
    "at": "2026-01-01 00:00",
}


def figure(case: str, value: float, unit: str, against: str = "", ratio: float | None = None) -> dict[str, Any]:
    fields = {"case": case, "value": value, "unit": unit, "against": against, "ratio": ratio}
    return {**fields, "durability": "synced", "rounds": 5, "low": value / 2, "high": value * 2}


def page_of(directory: Path, module: str, *lines: dict[str, Any]) -> str:
    """Return the section of one module on a page made from its lines."""
    (directory / "docs").mkdir()
    (directory / f"{module}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = page(directory, directory / "docs" / "benchmarks.md")
    return next(part for part in found.split("\n## ") if part.startswith(f"{module}\n"))


def test_a_case_is_one_row_with_all_that_it_is_compared_with(tmp_path: Path) -> None:
    lines = [
        figure("push/64KiB", 18_000, "bundles/s", "durable-limit", 0.51),
        figure("push/64KiB", 18_000, "bundles/s", "memcpy", 0.08),
        figure("push/64KiB", 1_180, "MB/s"),
        figure("push/64KiB/ack_p50", 7_000, "us"),
    ]
    section = page_of(tmp_path, "ingest", {"machine": QUIET}, *lines, {"machine": QUIET})
    row = next(line for line in section.splitlines() if "18,000 bundles/s" in line)
    assert "9,000 … 36,000" in row
    assert "0.51 of durable-limit; 0.08 of memcpy" in row
    assert "| synced |" in row
    assert "7,000 us" in next(line for line in section.splitlines() if "1,180 MB/s" in line or "7,000" in line)
    assert section.count("p50 90 µs, p99 200 µs") == 2
    assert "busy with other work:" not in section


def test_an_aim_is_met_missed_with_a_reason_or_not_measured(tmp_path: Path) -> None:
    lines = [
        figure("push/64KiB/1slot/1p/sync", 17_000, "bundles/s", "memcpy", 0.08),
        figure("push/64KiB/1slot/1p/sync", 17_000, "bundles/s", "durable-limit", 0.51),
        figure("push/1KiB/1slot/1p/sync/worker_cpu", 1.5, "us/bundle"),
    ]
    page_of(tmp_path, "ingest", {"machine": QUIET}, *lines, {"machine": QUIET})
    aims = page(tmp_path, tmp_path / "docs" / "benchmarks.md").partition("\n## Aims\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in aims.splitlines() if line.startswith("| ingest")
    ]
    assert [row[1:] for row in rows[:3]] == [
        ["64 KiB", "≥ 18,000 bundles/s", "17,000 bundles/s", "no (a)"],
        ["64 KiB, of a durable new file", "≥ 0.45", "0.51", "yes"],
        ["1 MiB", "≥ 1,300 MB/s", "", "not measured"],
    ]
    assert ["≤ 2 us/bundle", "1.5 us/bundle", "yes"] in [row[2:] for row in rows]
    assert f"2 of {len(AIMS)} are met." in aims
    assert [line for line in aims.splitlines() if line.startswith("- (")] == [f"- (a) {AIMS[0].why}"]


def test_losses_against_peers_are_said(tmp_path: Path) -> None:
    at = "peers/64KiB/16outstanding"
    lines = [
        figure(f"{at}/{name}", value, "bundles/s") for name, value in (("quiver", 900), ("LMDB", 1000), ("SQLite", 300))
    ]
    lines += [figure(f"{at}/quiver", 900, "bundles/s", name, ratio) for name, ratio in (("LMDB", 0.9), ("SQLite", 3.0))]
    skipped = {"skipped": "RocksDB", "why": "no Python module rocksdict: make bench-peers"}
    section = page_of(tmp_path, "peers", {"machine": QUIET}, skipped, *lines, {"machine": QUIET})
    assert "Behind: LMDB (0.90 of it)." in section
    assert "Skipped: RocksDB (no Python module rocksdict" in section
    picture = ElementTree.parse(tmp_path / "docs" / "benchmarks" / "peers.svg")
    assert {"quiver", "LMDB", "SQLite"} <= {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}


def test_a_busy_machine_and_a_run_without_an_end_are_said(tmp_path: Path) -> None:
    section = page_of(tmp_path, "seal", {"machine": {**QUIET, "busy_percent": 80}}, figure("seal/1KiB", 1.2, "ms"))
    assert "trust no rate" in section
    assert "did not come to its end" in section


def test_a_module_without_results_is_named(tmp_path: Path) -> None:
    assert "Not measured." in page_of(tmp_path, "scale")


def test_a_module_that_is_not_run_again_keeps_its_section_and_its_aims(tmp_path: Path) -> None:
    where = tmp_path / "docs" / "benchmarks.md"
    missed, met = figure("push/64KiB/1slot/1p/sync", 17_000, "bundles/s"), figure("seal/1KiB", 1.2, "ms")
    kept = page_of(tmp_path, "ingest", {"machine": QUIET}, missed, {"machine": QUIET})
    before = page(tmp_path, where)
    where.write_text(before)
    (tmp_path / "ingest.jsonl").unlink()
    assert page(tmp_path, where) == before
    (tmp_path / "seal.jsonl").write_text("\n".join(map(json.dumps, ({"machine": QUIET}, met, {"machine": QUIET}))))
    after = page(tmp_path, where)
    assert kept.strip() in after
    assert "1.2 ms" in after
    assert "| 17,000 bundles/s | no (a) |" in after
    (tmp_path / "ingest.jsonl").write_text(json.dumps(figure("push/64KiB/1slot/1p/sync", 19_000, "bundles/s")))
    assert "| 19,000 bundles/s | yes |" in page(tmp_path, where)


def test_the_suite_runs_every_module_that_can_be_run() -> None:
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    # The last one is a process that `slow_cold` starts.
    assert programs - {"suite", "report", "slow_cold_node"} == set(MODULES)


def test_a_wrong_module_is_refused_by_name() -> None:
    command = [sys.executable, "-m", "benchmarks.suite", "--only", "nothing"]
    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "nothing" in ended.stderr
