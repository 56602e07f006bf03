"""The whole loop on SmolLM2-135M-Instruct: the standard library's source becomes rows, without the functions in the
questions; the tuned model and its base answer, hidden tests in the sandbox judge, and the gate decides on the alias.

``pytest tests/system/test_corpus_loop.py -s`` prints the figures of docs/corpus-loop.md.
"""

from __future__ import annotations

import json
import re
import shutil
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corpus.build import build
from corpus.mixing.mix_report import read_report, report_path
from corpus.recipe import read_recipe
from shared.sandbox.levels import LEVELS
from shared.sandbox.probe import missing
from tests.system.loop import Installation, mens
from tests.system.real_base import REAL, finish, real_installation

pytestmark = pytest.mark.timeout(1800)

MODULES = [
    "operator",
    "bisect",
    "textwrap",
    "statistics",
    "colorsys",
    "fnmatch",
    "shlex",
    "heapq",
    "string",
    "calendar",
    "random",
    "functools",
    "posixpath",
    "genericpath",
    "stat",
    "keyword",
    "copy",
    "difflib",
    "fractions",
    "base64",
    "quopri",
]
TESTS = {
    "lt": "f(1, 2) and not f(2, 2)", "le": "f(2, 2) and not f(3, 2)", "eq": "f(2, 2) and not f(1, 2)",
    "ne": "f(1, 2) and not f(2, 2)", "ge": "f(2, 2) and not f(1, 2)", "gt": "f(3, 2) and not f(2, 2)",
    "not_": "f(0) is True and f(5) is False", "truth": "f([1]) is True and f('') is False",
    "is_": "f(None, None) and not f([], [])", "is_not": "f([], []) and not f(None, None)",
    "add": "f(2, 3) == 5 and f('a', 'b') == 'ab'", "and_": "f(6, 3) == 2", "floordiv": "f(7, 2) == 3 and f(-7, 2) == -4",
    "inv": "f(5) == -6", "lshift": "f(3, 2) == 12", "mod": "f(7, 4) == 3", "mul": "f(6, 7) == 42", "neg": "f(5) == -5",
    "or_": "f(6, 1) == 7", "pos": "f(-5) == -5", "pow": "f(2, 5) == 32", "rshift": "f(12, 2) == 3", "sub": "f(7, 9) == -2",
    "truediv": "f(7, 2) == 3.5", "xor": "f(6, 3) == 5", "concat": "f([1], [2]) == [1, 2]",
    "contains": "f([1, 2], 2) and not f([1, 2], 3)", "countOf": "f([1, 2, 1], 1) == 2", "getitem": "f([5, 6], 1) == 6",
    "indexOf": "f([5, 6], 6) == 1",
}  # fmt: skip
"""Functions of `operator` that are asked, and the hidden test of each."""
GRADER = """\
import re, textwrap

def grade(sample, item):
    answer = sample["output_text"]
    code = "\\n".join(re.findall(r"```(?:python)?\\n(.*?)(?:```|$)", answer, re.DOTALL)) or answer
    for program in (code, item["head"] + "\\n" + textwrap.indent(code.strip("\\n"), "    ")):
        scope = {}
        try:
            exec(program, scope)
            if eval(item["test"], {"f": scope[item["name"]]}):
                return 1.0
        except Exception:
            pass
    return 0.0
"""
"""Takes a whole function, in a fence or not, or the body that was asked for."""
CRITERION = {"type": "python", "name": "solved", "source": GRADER, "pass_threshold": 1}
POLICY = """\
version: "1"
runs:
  functions:
    eval: {eval}
    file: {file}
    messages: [{{role: user, content: "{{{{ item.prompt }}}}"}}]
    max_completion_tokens: 96
gates:
  evals:
    solved: {{run: functions, criterion: solved, min_win_rate: 0.5}}
"""
RECIPE = """\
extract: {paths: [python], language: [python], license: PSF-2.0}
pairs: {rules: [implement, from_docstring]}
mix:
  output: train.jsonl
  max_rows: 160
"""
DECONTAMINATE = "  decontaminate: {files: [../items.jsonl]}\n"
ROWS = 160


def rows_of(folder: Path, modules: list[str], recipe: str) -> list[dict[str, Any]]:
    """The training rows that a build makes of modules of the standard library."""
    (folder / "python").mkdir(parents=True)
    for module in modules:
        shutil.copy(Path(sysconfig.get_paths()["stdlib"]) / f"{module}.py", folder / "python")
    path = folder / "recipe.yaml"
    path.write_text(recipe)
    list(build(read_recipe(path), path))
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def items(folder: Path) -> list[dict[str, str]]:
    """The functions that are asked: prompt, signature, solution and test."""
    found = []
    for row in rows_of(folder, ["operator"], RECIPE.replace("  max_rows: 160\n", "")):
        head = re.search(r"```python\n(def (\w+)\(.*?)\n```", row["prompt"], re.DOTALL)
        if head and head[2] in TESTS:
            solution = f"{head[1]}\n{textwrap.indent(row['response'], '    ')}"
            found.append(
                {
                    "prompt": row["prompt"],
                    "name": head[2],
                    "head": head[1],
                    "reference": solution,
                    "test": TESTS[head[2]],
                }
            )
    return sorted(found, key=lambda item: item["name"])


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, str]], Path]:
    """The items, and the folder with their file and a corpus of rows without them."""
    folder = tmp_path_factory.mktemp("loop")
    found = items(folder / "asked")
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in found))
    rows_of(folder / "corpus", MODULES, RECIPE + DECONTAMINATE)
    return found, folder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation that serves SmolLM2 and nothing else."""
    with real_installation(tmp_path_factory.mktemp("installation")) as installation:
        yield installation


@pytest.mark.long
def test_rows_hold_no_function_of_the_eval(asked: tuple[list[dict[str, str]], Path]) -> None:
    found, folder = asked
    assert {item["name"] for item in found} == set(TESTS)
    grade: dict[str, Any] = {}
    exec(GRADER, grade)
    assert all(grade["grade"]({"output_text": item["reference"]}, item) for item in found)
    assert not any(grade["grade"]({"output_text": "pass"}, item) for item in found)
    rows = [json.loads(line) for line in (folder / "corpus" / "train.jsonl").read_text().splitlines()]
    report = read_report(report_path(folder / "corpus" / "train.jsonl"))
    assert report
    assert len(rows) == ROWS
    assert report.dropped["CONTAMINATED"] > len(TESTS)
    docstrings = [item["head"].partition('"')[2] for item in found]
    assert not [row for row in rows for text in docstrings if text in row["prompt"] + row["response"]]


@pytest.mark.experiment
@pytest.mark.skipif(all(map(missing, LEVELS)), reason=missing("landlock"))
def test_gate_decides_by_hidden_tests(
    asked: tuple[list[dict[str, str]], Path], real: Installation, tmp_path: Path
) -> None:
    found, folder = asked
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in found[0]}}
    config = {"type": "custom", "item_schema": schema, "include_sample_schema": True}
    body = {"name": "Functions", "data_source_config": config, "testing_criteria": [CRITERION]}
    judged = real.call("POST", "/v1/evals", json=body)
    lines = "".join(json.dumps({"item": item}) + "\n" for item in found).encode()
    file = real.call("POST", "/v1/files", data={"purpose": "evals"}, files={"file": ("items.jsonl", lines)})
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(eval=judged["id"], file=file["id"]))
    for command in (("policies", "put", "solves", str(policy)), ("policies", "assign", "alias:python", "solves")):
        mens(*command, home=real.stack.home, timeout=120).check_returncode()
    contract = {
        "model": {"name": REAL},
        "data": {
            "train_file": real.upload_bytes("train.jsonl", (folder / "corpus" / "train.jsonl").read_bytes()),
            "validation_split_ratio": 0.0,
        },
        "quant": {"base": "none"},
        "exec": {
            "epochs": 2, "learning_rate": 2e-4, "batch_size": 4, "grad_accum": 1, "warmup_steps": 2, "seq_len": 256,
            "checkpoint_every": 1000, "seed": 1,
        },
        "artifact": {"alias": "python"},
    }  # fmt: skip
    job = finish(
        real, str(real.call("POST", "/v1/jobs", json={"kind": "finetune", "name": "loop", "contract": contract})["id"])
    )
    result = job["result"]
    receipt = real.call("GET", f"/v1/receipts/{result['receipt']['id']}")["receipt"]
    (gate,) = receipt["gates"]
    print(gate["message"])
    assert (gate["name"], gate["n"]) == ("evals.solved", len(TESTS))
    # The rows teach; whether thirty items show it beyond chance is for the gate to say, and its word is kept.
    assert gate["value"] >= 0.5, gate
    assert gate["interval"][0] > 0.5 or gate["status"] != "passed", gate
    assert result["alias"]["moved"] == gate["passed"], result["alias"]
    assert receipt["sandbox"] in LEVELS
