"""One variant of ``bench/corpus.py`` in a separate process: prints seconds, rows and memory as JSON.

    python -m bench.datasets.corpus_variants VARIANT FOLDER [PACKAGE…]

FOLDER contains the variant's input; the output is written into a subfolder named after the variant. The imports of a
variant are not counted.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from bench.datasets.data_variants import Variant, print_measured
from bench.datasets.datatrove_variants import ITEMS_NAME, ROWS_NAME, datatrove, n_grams

RECIPE_NAME, COPY_NAME = "recipe.yaml", "copied.tsv"
TABLE_QUERY = "SELECT id, question, answer FROM tickets"
PULL_URL, COPY_URL, PSQL = "MENS_BENCH_PULL_URL", "MENS_BENCH_COPY_URL", "MENS_BENCH_PSQL"
"""Variables of a variant: the address of the table's database for SQLAlchemy and for psql, and psql's path."""
ROWS_AT_ONCE = 2_000
NEAR = 0.8
PYTHON_FOLDERS = (
    "asyncio", "collections", "concurrent", "ctypes", "curses", "distutils", "email", "http", "idlelib", "importlib", "json",
    "logging", "multiprocessing", "sqlite3", "tkinter", "unittest", "urllib", "wsgiref", "xml", "xmlrpc",
)  # fmt: skip
SMOKE_PYTHON_FOLDERS = ("json",)
AT_ONCE = 8
QUESTION = "Which part of the printer number {number} is out of order, and how long does its repair take?"


def mix(folder: Path) -> int:
    """Write a mix of one file, without exact and near duplicates."""
    from corpus.mixing.mix import run_mix
    from corpus.mixing.mix_file import Dedup, Mix, MixSource

    plan = Mix(output="mens/train.jsonl", sources=[MixSource(path=ROWS_NAME)], dedup=Dedup(near=NEAR))
    return run_mix(plan, folder / "mix.yaml").report.total_emitted


def decontaminate(folder: Path) -> int:
    """Write a mix of one file without the rows that hold an item of an eval; return the number of its rows."""
    from corpus.mixing.mix import run_mix
    from corpus.mixing.mix_file import Decontaminate, Dedup, Mix, MixSource

    plan = Mix(
        output="mens/train.jsonl",
        sources=[MixSource(path=ROWS_NAME)],
        dedup=Dedup(exact=False, near=None),
        decontaminate=Decontaminate(files=[ITEMS_NAME]),
    )
    return run_mix(plan, folder / "mix.yaml").report.total_emitted


def filter_rows(folder: Path) -> int:
    """Judge rows by the filters of secrets and of personal data; return the size of the rows in bytes."""
    from corpus.filters.row_filters import PersonalDataFilter, SecretFilter

    filters = SecretFilter(), PersonalDataFilter(key=b"bench")
    size = 0
    with (folder / ROWS_NAME).open("rb") as file:
        while lines := list(islice(file, ROWS_AT_ONCE)):
            rows = [json.loads(line) for line in lines]
            for row_filter in filters:
                row_filter.judge(rows)
            size += sum(map(len, lines))
    return size


def columns(folder: Path) -> int:
    """Write rows of columns without a model; return their number."""
    from corpus.generation.generating import Generation
    from corpus.stages import key_of

    stage = Generation(folder / RECIPE_NAME)
    return stage.run(folder / "generated", key_of(stage)).rows


def python_paths() -> tuple[Path, ...]:
    """Return the folders of the standard library's packages that the command line names."""
    return tuple(Path(sysconfig.get_path("stdlib"), name) for name in sys.argv[3:])


def pull_rows(folder: Path) -> int:
    """Write the rows of a table without personal data; return their number."""
    from corpus.filters.placeholder_key import PlaceholderKey
    from corpus.reading.addresses import address_of
    from corpus.reading.pull import pull
    from corpus.reading.pull_spec import PullSpec

    row = {"prompt": "{{ item.question }}", "response": "{{ item.answer }}"}
    spec = PullSpec.of({"source": "bench", "sql": TABLE_QUERY, "key": ["id"], "row": row})
    address = address_of("bench", os.environ[PULL_URL], PULL_URL)
    return pull(spec, address, folder / "pulled", redaction_key=PlaceholderKey(b"bench")).rows


def copy_rows(folder: Path) -> int:
    """Write what PostgreSQL's client copies of the same query; return the number of the rows."""
    with (folder / COPY_NAME).open("wb") as file:
        command = [os.environ[PSQL], "-X", os.environ[COPY_URL], "-c", f"COPY ({TABLE_QUERY}) TO STDOUT"]
        subprocess.run(command, stdout=file, check=True)
    return int(subprocess.run(["wc", "-l"], stdin=(folder / COPY_NAME).open(), capture_output=True, check=True).stdout)


def extract(folder: Path) -> int:
    """Write the units of Python files; return the number of the files."""
    from corpus.stages import key_of
    from corpus.units.extraction import Extraction

    stage = Extraction(python_paths(), ("python",), "PSF-2.0")
    return int(stage.run(folder / "units", key_of(stage)).report["files"])


def parse(_: Path) -> int:
    """Parse the same files, and keep nothing."""
    from corpus.units.files import find_files

    warnings.simplefilter("ignore")
    count = 0
    for file in find_files(python_paths(), (".py",), Counter()):
        ast.parse(file.path.read_bytes())
        count += 1
    return count


def build(folder: Path) -> int:
    """Build a recipe in one process; return the number of stages that ran."""
    import corpus.build as module
    from corpus.recipe import read_recipe

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    recipe = folder / RECIPE_NAME
    return sum(action.runs for action in module.build(read_recipe(recipe), recipe))


def generate(folder: Path) -> int:
    """Write rows with answers of a model; return their number."""
    from corpus.generation.endpoints import INSTALLATION, ModelEndpoint
    from corpus.generation.generating import Generation
    from corpus.generation.model_rows import ModelAccess
    from corpus.stages import key_of

    def installation(name: str) -> ModelEndpoint:
        url = os.environ["MENS_API_URL"]
        return ModelEndpoint(name, INSTALLATION, f"{url}/v1", name, os.environ["MENS_API_KEY"])

    stage = Generation(folder / RECIPE_NAME, None, ModelAccess({}, installation, b"bench", concurrency=AT_ONCE))
    return stage.run(folder / "generated", key_of(stage)).rows


def client(folder: Path) -> int:
    """Send the same requests, read the answers' texts, and keep nothing."""
    import httpx

    column = json.loads((folder / RECIPE_NAME).read_bytes())["columns"][-1]
    headers = {"Authorization": f"Bearer {os.environ['MENS_API_KEY']}"}
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    with httpx.Client(
        base_url=os.environ["MENS_API_URL"], headers=headers, limits=limits, timeout=60, trust_env=False
    ) as http:

        def ask(number: int) -> str:
            messages = [{"role": "user", "content": QUESTION.format(number=number)}]
            body = {"model": column["model"], "messages": messages, "max_completion_tokens": 16, "temperature": 0.0}
            answer = http.post("/v1/chat/completions", json=body).raise_for_status()
            return str(answer.json()["choices"][0]["message"]["content"])

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return sum(1 for text in pool.map(ask, range(int(sys.argv[3]))) if text)


def imported(run: Variant, *modules: str) -> Callable[[], Variant]:
    """Return a factory for a variant whose modules are imported before the clock starts."""

    def make() -> Variant:
        for module in modules:
            __import__(module)
        return run

    return make


VARIANTS: dict[str, Callable[[], Variant]] = {
    "mix": imported(mix, "corpus.mixing.mix"),
    "datatrove": datatrove,
    "decontaminate": imported(decontaminate, "corpus.mixing.mix"),
    "n-grams": n_grams,
    "filters": imported(filter_rows, "corpus.filters.row_filters"),
    "columns": imported(columns, "corpus.generation.generating", "corpus.stages"),
    "pull": imported(pull_rows, "corpus.reading.pull", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"),
    "copy": imported(copy_rows),
    "extract": imported(extract, "corpus.units.extraction"),
    "parse": imported(parse, "corpus.units.files"),
    "generate": imported(generate, "corpus.generation.generating", "corpus.stages"),
    "client": imported(client, "httpx"),
    "build": imported(build, "corpus.build", "corpus.recipe"),
}


if __name__ == "__main__":
    print_measured(VARIANTS[sys.argv[1]](), Path(sys.argv[2]))
