"""Building corpora, compared with other software for the same tasks (goals K1 to K9): ``python -m
bench.corpus``.

- K1: a mix without exact and near duplicates, compared with datatrove's MinHash deduplication of the same rows, by CPU
  time and by the share of the planted copies that each leaves out.
- K2: memory of a mix of many rows in one process.
- K3: ``mens corpus pull`` of a table in PostgreSQL, without personal data, compared with psql's ``COPY … TO STDOUT``
  of the same query into a file, in rows per CPU second of client and server.
- K4: ``mens corpus extract`` on packages of the standard library, compared with plain ``ast.parse`` on the same files,
  by CPU time.
- K5: the filters of secrets and of personal data, in bytes of rows per CPU second.
- K6: a mix without the rows that hold an item of an eval, compared with datatrove's filter of n-grams, by CPU time.
- K7: ``mens generate-data`` with columns that need no model, compared with Data Designer's samplers, in rows per CPU
  second. A smoke run leaves Data Designer out: it shares no library with the product, and its imports alone take ten
  CPU seconds.
- K8: ``mens generate-data`` with a column that a model answers, compared with a bare client that sends the same
  requests with the same concurrency and writes nothing; by wall time, through the API to a fake replica that answers
  after a set time.
- K9: ``mens corpus build`` of a recipe whose inputs have not changed.

Variants run in turns, each in a separate process whose start and imports are not counted. The peer is installed in
``.cache/bench-venv``, made on the first run; Data Designer in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.datasets.corpus_variants import (
    AT_ONCE,
    PYTHON_FOLDERS,
    QUESTION,
    RECIPE_NAME,
    SMOKE_PYTHON_FOLDERS,
)
from bench.datasets.datatrove_variants import ITEMS_NAME, ROWS_NAME
from bench.datasets.planted_rows import FoundCopies, PlantedPairs, add_items, find_copies, write_rows
from bench.harness.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.harness.peers import isolated_python, peers_python
from bench.harness.processes import Processes, variant_processes
from bench.serving.gateway_variants import ALIAS, FakeInstallation

PARTS = ("duplicates", "memory", "pull", "extract", "filters", "contamination", "columns", "generate")
PRELOADED = ("corpus.build", "corpus.generation.generating")
SMOKE = {
    "rounds": 1,
    "rows": 1_500,
    "many_rows": 3_000,
    "pulled": 2_000,
    "items": 500,
    "made": 500,
    "generated": 24,
    "answer_ms": 5.0,
}
WORDS, WORDS_OF_MANY = 110, 60
"""Median length of a row."""
FASTER, RECALL_DIFFERENCE = 12.0, 0.005
SMOKE_RECALL_DIFFERENCE = 0.02
"""The tolerance of a smoke run, which has only 192 copies."""
BASE_BYTES, BYTES_PER_ROW = 100_000_000, 44
SHARE_OF_COPY = 0.3
SLOWER_THAN_PARSING = 2.5
REBUILD_SECONDS = 1.0
FILTERED_BYTES_PER_SECOND = 20_000_000
ITEM_WORDS, ITEMS_EVERY = 40, 100
"""Words of an item, and which row of the rows is an item too."""
FASTER_DECONTAMINATION = 5.0
MADE_ROWS_PER_SECOND = 100_000
FASTER_COLUMNS = 20.0
DATA_DESIGNER = "data-designer"
COLUMNS = {
    "columns": [
        {"name": "product", "sampler": "category", "values": {"printer": 3, "router": 1}},
        {"name": "age", "sampler": "uniform", "low": 1, "high": 9},
        {"name": "number", "sampler": "sequence"},
        {"name": "question", "template": "My {{ item.product }} number {{ item.number }} stops. What now?"},
    ],
    "row": {"prompt": "{{ item.question }}", "response": "Restart the {{ item.product }}."},
}
SLOWER_THAN_CLIENT = 1.1
RECIPE = f"mix: {{output: train.jsonl, sources: [{{path: {ROWS_NAME}}}], dedup: {{near: 0.8}}}}\n"
Facts = dict[str, float]


class CorpusBench:
    """Measures the parts of a corpus.

    Args:
        options: options of the command line.

    Raises:
        PeerMissing: the peer is not installed.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._smoke = options, bool(options.smoke)
        self._peers = peers_python()

    def measure(self) -> bool:
        """Run the chosen parts, print their tables and goals; return whether these are met."""
        parts = {
            "duplicates": self._duplicates,
            "memory": self._memory,
            "pull": self._pull,
            "extract": self._extract,
            "filters": self._filters,
            "contamination": self._contamination,
            "columns": self._columns,
            "generate": self._generate,
        }
        chosen = [self._options.only] if self._options.only else PARTS
        with (
            tempfile.TemporaryDirectory() as folder,
            variant_processes(smoke=self._smoke, python=self._peers, preloaded=PRELOADED) as processes,
        ):
            met = []
            for name in chosen:
                part = Path(folder) / name
                part.mkdir()
                met.append(parts[name](processes, part))
                shutil.rmtree(part)
        return all(met)

    def _duplicates(self, processes: Processes, folder: Path) -> bool:
        rows = self._options.rows
        planted = write_rows(folder / ROWS_NAME, rows, WORDS)
        copies = len(planted.exact), len(planted.near)
        size = (folder / ROWS_NAME).stat().st_size / 1e6
        facts: dict[str, list[Facts]] = {"mix": [], "datatrove": []}
        found_copies: dict[str, FoundCopies] = {}
        for _ in range(self._options.rounds):
            for name, measured in facts.items():
                output = folder / {"mix": "mens"}.get(name, name)
                shutil.rmtree(output, ignore_errors=True)
                measured.append(self._run(processes, name, folder))
                found_copies[name] = _copies_in(planted, rows, output)
        print(
            f"{rows:,} rows, {size:.0f} MB, {copies[0]:,} equal and {copies[1]:,} near copies; {_rounds(self._options)}"
        )
        _print_table(
            facts,
            {
                name: f"{item.share:.2%} of the copies and {item.others} other rows left out"
                for name, item in found_copies.items()
            },
        )
        ours, peer = (statistics.median(item["cpu_seconds"] for item in measured) for measured in facts.values())
        recall = found_copies["mix"].share, found_copies["datatrove"].share
        difference = SMOKE_RECALL_DIFFERENCE if self._smoke else RECALL_DIFFERENCE
        is_equal = recall[0] >= recall[1] - difference
        if self._smoke and not is_equal:
            raise BenchFailed(f"the mix left out {recall[0]:.1%} of the copies, datatrove {recall[1]:.1%}")
        return print_goal(
            "K1",
            cpu_ratio=round(peer / ours, 2),
            recall=round(recall[0], 4),
            recall_of_peer=round(recall[1], 4),
            others=found_copies["mix"].others,
            others_of_peer=found_copies["datatrove"].others,
            target=FASTER,
            met=peer / ours >= FASTER and is_equal,
            smoke=self._smoke,
        )

    def _memory(self, processes: Processes, folder: Path) -> bool:
        rows = self._options.many_rows
        write_rows(folder / ROWS_NAME, rows, WORDS_OF_MANY)
        (folder / RECIPE_NAME).write_text(RECIPE)
        size = (folder / ROWS_NAME).stat().st_size / 1e6
        first = self._run(processes, "build", folder)
        again = [self._run(processes, "build", folder) for _ in range(self._options.rounds)]
        if first["rows"] != 1 or any(facts["rows"] for facts in again):
            raise BenchFailed("the mix ran again or never ran")
        print(f"\n{rows:,} rows, {size:.0f} MB, one process; {_rounds(self._options)}")
        _print_table({"build": [first], "rebuild": again}, {})
        limit, peak = BASE_BYTES + BYTES_PER_ROW * rows, first["peak_bytes"]
        small = print_goal("K2", rows=rows, peak_bytes=peak, target=limit, met=peak <= limit, smoke=self._smoke)
        seconds = statistics.median(facts["seconds"] for facts in again)
        fast = print_goal(
            "K9",
            rows=rows,
            seconds=round(seconds, 3),
            cpu_seconds=round(statistics.median(facts["cpu_seconds"] for facts in again), 3),
            target=REBUILD_SECONDS,
            met=seconds <= REBUILD_SECONDS,
            smoke=self._smoke,
        )
        return small and fast

    def _pull(self, processes: Processes, folder: Path) -> bool:
        from bench.datasets.source_table import source_table  # slow to import

        rows = self._options.pulled
        facts: dict[str, list[Facts]] = {"pull": [], "copy": []}
        with source_table(rows) as table:
            for _ in range(self._options.rounds):
                for name, measured in facts.items():
                    shutil.rmtree(folder / "pulled", ignore_errors=True)
                    before = table.cpu_seconds()
                    run = self._run(processes, name, folder, **table.environment)
                    server = table.cpu_seconds() - before
                    measured.append(run | {"cpu_seconds": run["cpu_seconds"] + server, "server": server})
        if any(run["rows"] != rows for measured in facts.values() for run in measured):
            raise BenchFailed("rows are missing")
        print(f"\n{rows:,} rows of a table; {_rounds(self._options)}")
        servers = {name: statistics.median(run["server"] for run in measured) for name, measured in facts.items()}
        _print_table(facts, {name: f"{seconds:.2f} CPU s of it in the server" for name, seconds in servers.items()})
        ours, peer = (statistics.median(run["cpu_seconds"] for run in measured) for measured in facts.values())
        return print_goal(
            "K3",
            share=round(peer / ours, 3),
            rows_per_cpu_second=round(rows / ours),
            peer_rows_per_cpu_second=round(rows / peer),
            target=SHARE_OF_COPY,
            met=peer / ours >= SHARE_OF_COPY,
            smoke=self._smoke,
        )

    def _extract(self, processes: Processes, folder: Path) -> bool:
        names = SMOKE_PYTHON_FOLDERS if self._smoke else PYTHON_FOLDERS
        facts: dict[str, list[Facts]] = {"extract": [], "parse": []}
        for _ in range(self._options.rounds):
            for name, measured in facts.items():
                shutil.rmtree(folder / "units", ignore_errors=True)
                measured.append(self._run(processes, name, folder, *names))
        files = {run["rows"] for measured in facts.values() for run in measured}
        if len(files) != 1:
            raise BenchFailed(f"the variants read different numbers of files: {sorted(files)}")
        print(f"\n{files.pop():,} Python files; {_rounds(self._options)}")
        _print_table(facts, {})
        ours, parse = (statistics.median(run["cpu_seconds"] for run in measured) for measured in facts.values())
        ratio = ours / parse
        return print_goal(
            "K4",
            cpu_ratio=round(ratio, 2),
            target=SLOWER_THAN_PARSING,
            met=ratio <= SLOWER_THAN_PARSING,
            smoke=self._smoke,
        )

    def _filters(self, processes: Processes, folder: Path) -> bool:
        write_rows(folder / ROWS_NAME, self._options.rows, WORDS)
        runs = [self._run(processes, "filters", folder) for _ in range(self._options.rounds)]
        print(f"\n{runs[0]['rows'] / 1e6:.0f} MB of rows; {_rounds(self._options)}")
        _print_table({"filters": runs}, {})
        speed = runs[0]["rows"] / statistics.median(run["cpu_seconds"] for run in runs)
        return print_goal(
            "K5",
            bytes_per_cpu_second=round(speed),
            target=FILTERED_BYTES_PER_SECOND,
            met=speed >= FILTERED_BYTES_PER_SECOND,
            smoke=self._smoke,
        )

    def _contamination(self, processes: Processes, folder: Path) -> bool:
        rows, items = self._options.rows, self._options.items
        write_rows(folder / ROWS_NAME, rows, WORDS)
        write_rows(folder / ITEMS_NAME, items, ITEM_WORDS, seed=11)
        planted = add_items(folder / ROWS_NAME, folder / ITEMS_NAME, ITEMS_EVERY)
        facts: dict[str, list[Facts]] = {"decontaminate": [], "n-grams": []}
        for _ in range(self._options.rounds):
            for name, measured in facts.items():
                for output in ("mens", "n-grams"):
                    shutil.rmtree(folder / output, ignore_errors=True)
                measured.append(self._run(processes, name, folder))
        dropped = {name: rows - round(measured[-1]["rows"]) for name, measured in facts.items()}
        if min(dropped.values()) < planted:
            raise BenchFailed(f"of {planted} planted items, rows left out: {dropped}")
        print(f"\n{rows:,} rows, {items + planted:,} items, {planted:,} of them rows; {_rounds(self._options)}")
        _print_table(facts, {name: f"{count:,} rows left out" for name, count in dropped.items()})
        ours, peer = (statistics.median(run["cpu_seconds"] for run in measured) for measured in facts.values())
        return print_goal(
            "K6",
            cpu_ratio=round(peer / ours, 2),
            target=FASTER_DECONTAMINATION,
            met=peer / ours >= FASTER_DECONTAMINATION,
            smoke=self._smoke,
        )

    def _columns(self, processes: Processes, folder: Path) -> bool:
        rows = self._options.made
        (folder / RECIPE_NAME).write_text(json.dumps({"rows": rows, **COLUMNS}))
        facts: dict[str, list[Facts]] = {"columns": []} if self._smoke else {"columns": [], DATA_DESIGNER: []}
        for _ in range(self._options.rounds):
            shutil.rmtree(folder / "generated", ignore_errors=True)
            facts["columns"].append(self._run(processes, "columns", folder))
            if not self._smoke:
                facts[DATA_DESIGNER].append(self._designed(processes, folder))
        if any(run["rows"] != rows for run in facts["columns"]):
            raise BenchFailed("rows are missing")
        print(f"\n{rows:,} rows of four columns; {_rounds(self._options)}")
        _print_table(facts, {DATA_DESIGNER: f"{self._options.designed:,} rows"})
        speeds = [statistics.median(run["rows"] / run["cpu_seconds"] for run in runs) for runs in facts.values()]
        met = print_goal(
            "K7",
            rows_per_cpu_second=round(speeds[0]),
            target=MADE_ROWS_PER_SECOND,
            met=speeds[0] >= MADE_ROWS_PER_SECOND,
            smoke=self._smoke,
        )
        if self._smoke:
            return met
        ratio = speeds[0] / speeds[1]
        return (
            print_goal(
                "K7-peer",
                cpu_ratio=round(ratio, 2),
                peer_rows_per_cpu_second=round(speeds[1]),
                target=FASTER_COLUMNS,
                met=ratio >= FASTER_COLUMNS,
                smoke=False,
            )
            and met
        )

    def _designed(self, processes: Processes, folder: Path) -> Facts:
        shutil.rmtree(folder / "designer", ignore_errors=True)
        output = processes.run(
            isolated_python(DATA_DESIGNER),
            "bench.datasets.data_designer_columns",
            str(folder),
            str(self._options.designed),
            DATA_DESIGNER_HOME=str(folder / "home"),
        )
        facts: Facts = json.loads(output.splitlines()[-1])
        return facts

    def _generate(self, processes: Processes, folder: Path) -> bool:
        rows = self._options.generated
        recipe = {
            "rows": rows,
            "columns": [
                {"name": "number", "sampler": "sequence"},
                {"name": "answer", "method": "answer", "model": ALIAS, "max_tokens": 16},
            ],
            "row": {"prompt": QUESTION.format(number="{{ item.number }}"), "response": "{{ item.answer }}"},
        }
        (folder / RECIPE_NAME).write_text(json.dumps(recipe))
        facts: dict[str, list[Facts]] = {"generate": [], "client": []}
        # A short home folder: that of a smoke run has too long a path for the API's sockets.
        with (
            tempfile.TemporaryDirectory() as home,
            FakeInstallation(Path(home), self._options.answer_ms / 1_000) as installation,
        ):
            reached = {"MENS_API_URL": installation.api_url, "MENS_API_KEY": installation.key}
            # The first requests through a new API take longer.
            self._run(processes, "client", folder, str(rows), **reached)
            for _ in range(self._options.rounds):
                for name, measured in facts.items():
                    shutil.rmtree(folder / "generated", ignore_errors=True)
                    measured.append(self._run(processes, name, folder, str(rows), **reached))
        if any(run["rows"] != rows for measured in facts.values() for run in measured):
            raise BenchFailed("rows are missing")
        print(f"\n{rows:,} answers of {self._options.answer_ms:g} ms, {AT_ONCE} at once; {_rounds(self._options)}")
        _print_table(facts, {})
        ours, bare = (statistics.median(run["seconds"] for run in measured) for measured in facts.values())
        ratio = ours / bare
        return print_goal(
            "K8",
            ratio=round(ratio, 3),
            rows_per_second=round(rows / ours, 1),
            target=SLOWER_THAN_CLIENT,
            met=ratio <= SLOWER_THAN_CLIENT,
            smoke=self._smoke,
        )

    def _run(self, processes: Processes, variant: str, folder: Path, *more: str, **environment: str) -> Facts:
        python = self._peers if variant in ("datatrove", "n-grams") else Path(sys.executable)
        output = processes.run(python, "bench.datasets.corpus_variants", variant, str(folder), *more, **environment)
        facts: Facts = json.loads(output.splitlines()[-1])
        return facts


def main() -> int:
    parser = bench_parser("bench.corpus", __doc__)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=60_000, help="rows of K1, K5 and K6")
    parser.add_argument("--many-rows", type=int, default=1_000_000, help="rows in K2 and K9")
    parser.add_argument("--pulled", type=int, default=1_000_000, help="rows of K3")
    parser.add_argument("--items", type=int, default=20_000, help="items of evals in K6")
    parser.add_argument("--made", type=int, default=200_000, help="rows of K7")
    parser.add_argument("--designed", type=int, default=20_000, help="rows of Data Designer in K7")
    parser.add_argument("--generated", type=int, default=1_600, help="rows of K8")
    parser.add_argument("--answer-ms", type=float, default=100.0, help="milliseconds per answer in K8")
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: CorpusBench(options).measure())


def _copies_in(planted: PlantedPairs, rows: int, output: Path) -> FoundCopies:
    files = [output / "train.jsonl"] if output.name == "mens" else sorted((output / "kept").iterdir())
    return find_copies(planted, rows, _texts(files))


def _texts(files: list[Path]) -> Iterator[str]:
    for path in files:
        with path.open("rb") as file:
            for line in file:
                row = json.loads(line)
                yield row["text"] if "text" in row else f"{row['prompt']} {row['response']}"


def _rounds(options: argparse.Namespace) -> str:
    return f"median of {options.rounds} rounds" if options.rounds > 1 else "one round"


def _print_table(facts: dict[str, list[Facts]], notes: dict[str, str]) -> None:
    print(f"{'':<14}{'seconds':>10}{'CPU s':>10}{'peak MB':>10}")
    for name, measured in facts.items():
        medians = {key: statistics.median(run[key] for run in measured) for key in measured[0]}
        cells = f"{medians['seconds']:>10.2f}{medians['cpu_seconds']:>10.2f}{medians['peak_bytes'] / 1e6:>10.0f}"
        print(f"{name:<14}{cells}  {notes.get(name, '')}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
