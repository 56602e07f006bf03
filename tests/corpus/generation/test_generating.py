"""Generated rows: row i is the same whatever the number of rows, samplers have their distributions, and invalid recipes
have a code and leave no index.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import date
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import msgspec
import pytest

from corpus.generation.columns import UniformColumn
from corpus.generation.generating import Generation
from corpus.generation.samplers import sampler_of
from corpus.keys import stage_key
from corpus.provenance import row_id
from corpus.shards import ShardIndex, checked_shards, read_index
from shared.datasets.row_validation import decode_line
from shared.errors import InvalidRequest, NotFound
from shared.hashing import digest_file
from tests.support.killed_renames import each_kill

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "corpus" / "support.yaml"
ROW = {"prompt": "{{ item.a }}", "response": "an answer"}


def generate(
    recipe: Path, target: Path, rows: int | None = None, max_bytes: int = 64 << 20
) -> tuple[ShardIndex, list[dict[str, Any]]]:
    stage = Generation(recipe, rows)
    key = stage_key(stage.name, stage.version, stage.parameters(), stage.inputs())
    index = stage.run(target, key, max_bytes)
    return index, [json.loads(line) for path in checked_shards(target) for line in path.read_bytes().splitlines()]


def write(folder: Path, **fields: Any) -> Path:
    """A recipe; JSON is YAML."""
    (folder / "recipe.yaml").write_text(json.dumps({"rows": 10, "row": ROW, **fields}))
    return folder / "recipe.yaml"


def values_of(folder: Path, rows: int = 4_000, **column: Any) -> list[Any]:
    recipe = write(folder, rows=rows, columns=[{"name": "a", **column}], row=ROW | {"response": "{{ item.a }}"})
    return [row["response"] for row in generate(recipe, folder / "rows")[1]]


def test_a_thousand_rows_are_the_first_of_ten_thousand(tmp_path: Path) -> None:
    _, few = generate(EXAMPLE, tmp_path / "few", 1_000)
    _, many = generate(EXAMPLE, tmp_path / "many", 10_000)
    assert many[:1_000] == few
    assert len({row["id"] for row in many}) > 9_900


def test_number_of_a_row_depends_on_no_row_before_it(tmp_path: Path) -> None:
    column = UniformColumn(name="a", sampler="uniform", low=0, high=1, decimals=9)
    numbers = [sampler_of(column, 7, tmp_path)(row, {}) for row in range(400)]
    sampler = sampler_of(column, 7, tmp_path)
    assert [sampler(row, {}) for row in reversed(range(400))] == numbers[::-1]
    assert len(set(numbers)) == 400
    pairs = pairwise(numbers)
    assert abs(fmean((a - 0.5) * (b - 0.5) for a, b in pairs)) < 0.02, "rows that share a digest are independent"


def test_a_new_column_and_the_order_of_columns_change_no_other_value(tmp_path: Path) -> None:
    first, second = (
        {"name": "a", "sampler": "uniform", "low": 0, "high": 9},
        {"name": "b", "sampler": "poisson", "mean": 3},
    )
    found = [generate(write(tmp_path, columns=columns), tmp_path / "rows")[1] for columns in ([first], [second, first])]
    assert found[0] == found[1]


def test_the_example_gives_training_rows_with_their_origin(tmp_path: Path) -> None:
    index, rows = generate(EXAMPLE, tmp_path / "rows")
    assert index.rows == len(rows) == 200
    for row in rows:
        decode_line(json.dumps(row).encode())
        answer = json.loads(row["response"])
        assert f"{answer['product']} {answer['serial']}" in row["prompt"]
        assert (row["origin"], row["rating"]) == ("synthetic", 4)
    origin = json.loads((tmp_path / "rows" / "part-00000.sources.jsonl").read_bytes().splitlines()[3])
    assert (origin["source"], origin["locator"]) == ("generate:support", {"recipe": "support.yaml", "index": 3})


def test_weights_and_uniform_numbers_and_days(tmp_path: Path) -> None:
    counts = Counter(values_of(tmp_path, sampler="category", values={"often": 3, "seldom": 1}))
    assert 2_900 < counts["often"] < 3_100
    assert Counter(values_of(tmp_path, sampler="category", values=["x", "y"])).keys() == {"x", "y"}
    dice = Counter(values_of(tmp_path, sampler="uniform", low=1, high=6))
    assert dice.keys() == set("123456")
    assert min(dice.values()) > 560
    tenths = {float(value) for value in values_of(tmp_path, sampler="uniform", low=0, high=0.5, decimals=1)}
    assert tenths == {0.0, 0.1, 0.2, 0.3, 0.4, 0.5}
    days = {
        date.fromisoformat(value)
        for value in values_of(tmp_path, sampler="date", first="2024-02-27", last="2024-03-01")
    }
    assert sorted(days) == [date(2024, 2, 27), date(2024, 2, 28), date(2024, 2, 29), date(2024, 3, 1)]


def test_numbers_around_a_mean(tmp_path: Path) -> None:
    normal = [float(value) for value in values_of(tmp_path, sampler="gaussian", mean=10, deviation=2)]
    assert abs(fmean(normal) - 10) < 0.15
    assert abs(pstdev(normal) - 2) < 0.15
    for mean in (0.5, 4, 400):
        counts = [int(value) for value in values_of(tmp_path, sampler="poisson", mean=mean)]
        assert abs(fmean(counts) - mean) < 4 * (mean / 4_000) ** 0.5
        assert abs(pstdev(counts) - mean**0.5) < 0.1 * mean**0.5


def test_files_and_sequences_and_types_of_labels(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one\n\ntwo\n")
    (tmp_path / "rows.jsonl").write_text('{"title": "T", "stars": 5}\n')
    columns = [
        {"name": "a", "sampler": "lines", "file": "words.txt"},
        {"name": "b", "sampler": "rows", "file": "rows.jsonl"},
        {"name": "c", "sampler": "sequence", "start": 5, "step": 2},
    ]
    row = {"prompt": "{{ item.a }} {{ item.b.title }} {{ item.c }}", "response": "x", "rating": "{{ item.b.stars }}"}
    _, rows = generate(write(tmp_path, columns=columns, row=row), tmp_path / "rows")
    assert {row["prompt"].split()[0] for row in rows} == {"one", "two"}
    assert [row["prompt"].split()[1:] for row in rows[:2]] == [["T", "5"], ["T", "7"]]
    assert rows[0]["rating"] == 5


def test_bytes_do_not_depend_on_kills(tmp_path: Path) -> None:
    generate(EXAMPLE, tmp_path / "whole", max_bytes=20_000)
    whole = {path.name: digest_file(path) for path in (tmp_path / "whole").iterdir()}
    kills = 0
    for place in each_kill(tmp_path, lambda place: generate(EXAMPLE, place / "rows", max_bytes=20_000)):
        kills += 1
        assert read_index(place / "rows") is None
        generate(EXAMPLE, place / "rows", max_bytes=20_000)
        assert {path.name: digest_file(path) for path in (place / "rows").iterdir()} == whole
    assert kills >= 5


A = {"name": "a", "sampler": "sequence"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"columns": [A | {"stepp": 1}]}, "columns.0.stepp: this field does not exist"),
    "sampler": ({"columns": [A | {"sampler": "dice"}]}, "columns.0"),
    "missing": ({"columns": [A | {"sampler": "poisson"}]}, "columns.0.mean: it is required"),
    "name": ({"columns": [A | {"name": "a b"}]}, "columns.0.name"),
    "twice": ({"columns": [A, A]}, "Two columns have the name a"),
    "later": ({"columns": [{"name": "t", "template": "{{ item.a }}"}, A]}, "not an earlier column"),
    "unknown": ({"columns": [A], "row": ROW | {"prompt": "{{ item.b }}"}}, "row.prompt uses item.b"),
    "sample": ({"columns": [A], "row": ROW | {"prompt": "{{ sample.x }}"}}, "row.prompt uses sample.x"),
    "open": ({"columns": [A], "row": ROW | {"prompt": "{{ item.a"}}, "not closed"),
    "empty": ({"columns": [A | {"sampler": "uniform", "low": 2, "high": 1}]}, "a number with these"),
    "days": ({"columns": [A | {"sampler": "date", "first": "2026-01-02", "last": "2026-01-01"}]}, "must not be before"),
    "poisson": ({"columns": [A | {"sampler": "poisson", "mean": 1e9}]}, "500"),
    "rows": ({"columns": [A], "rows": 0}, "rows"),
    "no answer": ({"columns": [A], "row": {"prompt": "{{ item.a }}"}}, "Row 0 is not a training row"),
    "rating": ({"columns": [A], "row": ROW | {"rating": "{{ item.a }}"}}, "is not a training row"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_recipe_has_a_code_and_leaves_no_index(tmp_path: Path, name: str) -> None:
    fields, reason = BAD[name]
    with pytest.raises(InvalidRequest) as caught:
        generate(write(tmp_path, **fields), tmp_path / "rows")
    assert caught.value.code == "CORPUS_RECIPE_INVALID"
    assert reason in str(caught.value)
    assert read_index(tmp_path / "rows") is None


def test_a_missing_file_and_a_bad_file_have_codes(tmp_path: Path) -> None:
    columns = [{"name": "a", "sampler": "rows", "file": "rows.jsonl"}]
    with pytest.raises(NotFound, match="does not exist") as caught:
        generate(write(tmp_path, columns=columns), tmp_path / "rows")
    assert caught.value.code == "CORPUS_SOURCE_MISSING"
    for content, reason in (("[1]\n", "Line 1 of rows.jsonl is not a JSON object"), ("\n", "is empty")):
        (tmp_path / "rows.jsonl").write_text(content)
        with pytest.raises(InvalidRequest, match=reason):
            generate(write(tmp_path, columns=columns), tmp_path / "rows")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is a folder"):
        generate(write(tmp_path, columns=[{"name": "a", "sampler": "lines", "file": "."}]), tmp_path / "rows")


@pytest.mark.parametrize(
    "column",
    [
        "sampler: uniform, low: 0, high: .inf", "sampler: uniform, low: 0, high: 1.0e308, decimals: 9", "sampler: gaussian, mean: .nan, deviation: 1",
        "sampler: gaussian, mean: 0, deviation: .inf", "sampler: category, values: {x: .inf, y: 1}",
    ],
)  # fmt: skip
def test_numbers_without_an_end_are_refused(tmp_path: Path, column: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f'rows: 5\ncolumns: [{{name: a, {column}}}]\nrow: {{prompt: "{{{{ item.a }}}}", response: x}}\n')
    with pytest.raises(InvalidRequest) as caught:
        generate(recipe, tmp_path / "rows")
    assert caught.value.code == "CORPUS_RECIPE_INVALID"


def test_golden_bytes(tmp_path: Path) -> None:
    """If this fails because the output was changed on purpose, raise VERSION too."""
    index, _ = generate(EXAMPLE, tmp_path / "rows")
    assert index.shards[0].sha256[:16] == "3f0114c6ac9b0999"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "{{ item.a }}", "response": "x", "rating": "{{ item.b.stars }}", "id": "own", "origin": "agent"},
        {"messages": [{"role": "user", "content": "{{ item.b.title }}"}, {"role": "assistant", "content": "{{ item.a }}"}]},
        {"prompt": "p{{ item.a }}", "chosen": "{{ item.b.title }}", "rejected": "no"},
    ],
)  # fmt: skip
def test_a_row_and_its_provenance_have_the_id_that_any_reader_computes(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"title": "T", "stars": 5}\n')
    columns = [A, {"name": "b", "sampler": "rows", "file": "rows.jsonl"}]
    _, rows = generate(write(tmp_path, columns=columns, row=row), tmp_path / "rows")
    origins = map(json.loads, (tmp_path / "rows" / "part-00000.sources.jsonl").read_bytes().splitlines())
    for made, origin in zip(rows, origins, strict=True):
        assert next(iter(made)) == "id"
        assert made["id"] == origin["id"] == row_id({key: value for key, value in made.items() if key != "id"})
        content = {key: made.get(key, "synthetic") for key in [*row, *({"origin"} - row.keys())]}
        content |= {"id": row["id"]} if "id" in row else {}
        assert origin["content_sha256"] == hashlib.sha256(msgspec.json.encode(content)).hexdigest()
