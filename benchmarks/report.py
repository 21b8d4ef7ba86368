"""Makes docs/benchmarks.md, and its pictures beside it, from the lines that the modules printed: `bench_results/NAME.jsonl`.

A section a module: its question and method from its own docstring, the machine before and after, a picture of the ratios, the table, what
was skipped, and the remarks that benchmarks/remarks.md has for it. A module without results keeps its section
of the page as it was, or is named as not measured.

    python -m benchmarks.report [--results bench_results] [--page docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.aims import AIMS
from benchmarks.charts import Bar, Panel, chart
from benchmarks.former_page import FormerPage
from benchmarks.suite import MODULES, RESULTS

HERE = Path(__file__).parent
BUSY_PERCENT_MAX = 10
#: Figures whose case ends so stand in a column of the row of the case before it.
COLUMNS = {
    "ingest": ("ack_p50", "ack_p99", "producer_cpu", "worker_cpu", "cpu_per_GB"),
    "deliver": ("sum", "consumer_cpu", "worker_cpu"),
    "peers": ("ack_p50", "cpu", "read"),
}


@dataclass(slots=True)
class Row:
    """A case: its figure, what it is compared with, and what stands in columns beside it."""

    case: str
    figure: dict[str, Any]
    ratios: list[tuple[str, float]] = field(default_factory=list)
    beside: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Results:
    """Lines that one module printed."""

    module: str
    machines: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, module: str) -> Results:
        found = cls(module)
        for text in path.read_text().splitlines() if path.exists() else ():
            line = json.loads(text)
            if "machine" in line:
                found.machines.append(line["machine"])
            elif "skipped" in line:
                found.skipped.append((line["skipped"], line["why"]))
            else:
                found.figures.append(line)
        return found

    def rows(self) -> list[Row]:
        """One a case and unit, in the order in which they came."""
        columns, rows = COLUMNS.get(self.module, ()), dict[tuple[str, str], Row]()
        for figure in self.figures:
            base, _, last = figure["case"].rpartition("/")
            if last in columns:
                owner = next((row for row in reversed(rows.values()) if row.case == base), None)
                if owner is not None:
                    owner.beside[last] = figure
                    continue
            row = rows.setdefault((figure["case"], figure["unit"]), Row(figure["case"], figure))
            if figure["ratio"] is not None:
                row.ratios.append((figure["against"], figure["ratio"]))
        return list(rows.values())


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def amount(figure: dict[str, Any]) -> str:
    return f"{number(figure['value'])} {figure['unit']}"


def spread(figure: dict[str, Any]) -> str:
    if figure["low"] is None or figure["rounds"] < 2:
        return ""
    return f"{number(figure['low'])} … {number(figure['high'])}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def general_table(results: Results) -> list[str]:
    rows = results.rows()
    columns = [name for name in COLUMNS.get(results.module, ()) if any(name in row.beside for row in rows)]
    header = ["case", "median", "least … most", "ratio", *(name.replace("_", " ") for name in columns), "durability"]
    lines = []
    for row in rows:
        ratios = "; ".join(f"{ratio:.2f} of {against}" for against, ratio in row.ratios)
        beside = [amount(row.beside[name]) if name in row.beside else "" for name in columns]
        lines.append([row.case, amount(row.figure), spread(row.figure), ratios, *beside, row.figure["durability"]])
    return table(header, lines)


# --- peers: one table a case ---------------------------------------------------------------------------------------------


def peer_cases(results: Results) -> dict[str, list[Row]]:
    """Return a row for each store by case, Quiver's first."""
    found: dict[str, list[Row]] = {}
    for row in results.rows():
        parts = row.case.split("/")
        if len(parts) == 4:
            found.setdefault("/".join(parts[1:3]), []).append(row)
    return found


def peer_table(results: Results) -> list[str]:
    lines: list[str] = []
    for case, rows in peer_cases(results).items():
        ours = next(row for row in rows if row.case.endswith("/quiver"))
        ahead = dict(ours.ratios)
        read = {
            figure["against"]: figure["ratio"] for figure in results.figures if figure["case"] == f"{ours.case}/read"
        }
        lines += ["", f"**{case}**", ""]
        cells = []
        for row in rows:
            name = row.case.rpartition("/")[2]
            times = f"{ahead[name]:.2f}" if name in ahead else ""
            beside = [amount(row.beside[key]) if key in row.beside else "" for key in COLUMNS["peers"]]
            cells.append(
                [
                    name,
                    amount(row.figure),
                    spread(row.figure),
                    times,
                    *beside,
                    f"{read.get(name) or 0:.2f}" if times else "",
                ]
            )
        header = [
            "store",
            "median",
            "least … most",
            "Quiver, times",
            "ack p50",
            "CPU",
            "read back",
            "Quiver reads, times",
        ]
        lines += table(header, cells)
        lines += ["", losses(ahead)]
    encode = [row for row in results.rows() if row.case.endswith("/encode")]
    lines += [
        "",
        "What the peers were spared: "
        + ", ".join(f"{row.case.split('/')[1]} {amount(row.figure)}" for row in encode)
        + ".",
    ]
    return lines


def losses(ahead: dict[str, float]) -> str:
    behind = sorted((ratio, name) for name, ratio in ahead.items() if ratio < 1)
    if not behind:
        return "Quiver is ahead of all of them."
    return "Behind: " + ", ".join(f"{name} ({ratio:.2f} of it)" for ratio, name in behind) + "."


# --- pictures ------------------------------------------------------------------------------------------------------------


def picture(results: Results) -> str:
    """Return the results as SVG; empty if there is nothing to compare."""
    if results.module == "peers":
        panels = [
            Panel(
                case,
                [Bar(row.case.rpartition("/")[2], row.figure["value"], number(row.figure["value"])) for row in rows],
            )
            for case, rows in peer_cases(results).items()
        ]
        return chart("Bundles a second, durable", panels) if panels else ""
    found: dict[str, list[Bar]] = {}
    for row in results.rows():
        for against, ratio in row.ratios:
            found.setdefault(against, []).append(Bar(f"{row.case} ({row.figure['unit']})", ratio, f"{ratio:.2f}"))
    panels = [Panel(f"of {against}", bars, mark=1.0) for against, bars in found.items()]
    return chart("Ratio to what was measured beside it", panels) if panels else ""


# --- the page ------------------------------------------------------------------------------------------------------------


def docstring(module: str) -> str:
    """Question and method: the module's docstring without the line on how to call it."""
    text = ast.get_docstring(ast.parse((HERE / f"{module}.py").read_text())) or ""
    return text.partition("\n    python -m ")[0].strip()


def remarks() -> dict[str, str]:
    """Return people's remarks by module, and under `intro`."""
    found = {}
    for part in (HERE / "remarks.md").read_text().split("\n## ")[1:]:
        name, _, text = part.partition("\n")
        found[name.strip()] = text.strip()
    return found


def machine_lines(results: Results) -> Iterator[str]:
    for when, told in zip(("before", "after"), results.machines, strict=False):
        yield (
            f"- Machine {when} ({told['at']} UTC): {told['cores']} cores, {told['busy_percent']} % busy with other work, "
            f"load {told['load']}, {told['filesystem']}, "
            f"fdatasync of 4 KiB p50 {told['fdatasync_p50_us']} µs, p99 {told['fdatasync_p99_us']} µs."
        )
    if len(results.machines) == 1:
        yield "- **The run did not come to its end.**"
    if any(told["busy_percent"] > BUSY_PERCENT_MAX for told in results.machines):
        yield "- **The machine was busy with other work: trust no rate and no time here, and ratios with care.**"


def section(results: Results, picture_dir: Path, remark: str) -> list[str]:
    lines = [f"## {results.module}", ""]
    question, _, method = docstring(results.module).partition("\n\n")
    lines += [f"**{' '.join(question.split())}**", "", "```text", method, "```", ""]
    if not results.figures:
        return [*lines, "Not measured.", ""]
    rounds = max(figure["rounds"] for figure in results.figures)
    lines += [*machine_lines(results), f"- Rounds: {rounds}. `python -m benchmarks.{results.module}`"]
    lines += [f"- Skipped: {what} ({why})." for what, why in results.skipped]
    if svg := picture(results):
        picture_dir.mkdir(parents=True, exist_ok=True)
        (picture_dir / f"{results.module}.svg").write_text(svg)
        lines += ["", f"![{results.module}]({picture_dir.name}/{results.module}.svg)"]
    lines += ["", *(peer_table(results) if results.module == "peers" else general_table(results))]
    return [*lines, *(["", remark] if remark else []), ""]


def aims_section(results: Iterable[Results], former: FormerPage, remark: str) -> list[str]:
    """Each aim with what the figures come to; where that is less, a letter for the reason below the table."""
    figures, rows, met, letters = {each.module: each.figures for each in results}, [], 0, dict[str, str]()
    for aim in AIMS:
        unit = "" if aim.against else f" {aim.unit}"
        bound = f"{'≥' if aim.is_at_least else '≤'} {aim.bound:,g}{unit}"
        reached, is_met = former.aims.get((aim.module, aim.what), ("", None))
        if figures.get(aim.module):
            found = aim.reached(figures)
            reached, is_met = ("", None) if found is None else (f"{number(found)}{unit}", aim.is_met(found))
        told = "yes" if is_met else "not measured"
        if is_met is False:
            told = f"no ({letters.setdefault(aim.why, chr(ord('a') + len(letters)))})"
        met += is_met is True
        rows.append([aim.module, aim.what, bound, reached, told])
    lines = ["## Aims", "", remark, "", f"{met} of {len(AIMS)} are met."]
    lines += ["", *table(["module", "what", "aim", "reached", "met"], rows), ""]
    return [*lines, *(f"- ({letter}) {why or 'not known'}" for why, letter in letters.items()), ""]


def page(results_dir: Path, path: Path) -> str:
    told, former = remarks(), FormerPage.read(path)
    found = [Results.read(results_dir / f"{module}.jsonl", module) for module in MODULES]
    lines = ["# Benchmarks", "", told["intro"], "", *aims_section(found, former, told["aims"])]
    for results in found:
        if not results.figures and results.module in former.sections:
            lines += former.sections[results.module]
        else:
            lines += section(results, path.parent / "benchmarks", told.get(results.module, ""))
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory with the lines of the modules")
    parser.add_argument(
        "--page", type=Path, default=Path("docs/benchmarks.md"), help="the page to write; its pictures beside it"
    )
    arguments = parser.parse_args()
    arguments.page.write_text(page(arguments.results, arguments.page))
    print(f"wrote {arguments.page}")


if __name__ == "__main__":
    main()
