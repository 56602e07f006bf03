"""``mens eval export`` and ``import``: items of runs in files, and promptfoo's configuration both ways."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from cli.client.connection import connect, fail, fail_with, note
from cli.client.json_errors import Json
from cli.evaluation import runs as api
from cli.evaluation.eval_file import EvalFile, read_document
from cli.evaluation.promptfoo.reading import read_promptfoo
from cli.evaluation.promptfoo.writing import write_promptfoo
from cli.evaluation.run_items import OutputItem, as_line
from cli.output import counted
from shared.errors import MensError


def import_promptfoo(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="promptfooconfig.yaml, or JSON.")],
    output: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for the eval files. Default: FILE's folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read promptfoo's configuration: an eval file for each prompt and each form of its tests.

    Assertions become graders: equals, not-equals, contains, icontains, contains-any, starts-with, regex, is-json, rouge-n, bleu,
    gleu, meteor. Unused parts (code, rubrics, providers, files) are named on stderr. Then: `mens eval run NAME.eval.yaml --model MODEL`.
    """
    try:
        found = read_promptfoo(read_document(file), file.stem)
    except MensError as error:
        fail_with(error)
    for line in found.unused:
        note(f"not used: {line}")
    if not found.evals:
        fail(f"{file} has no usable prompt with a test.")
    folder = output or file.parent
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for evaluation in found.evals:
        path = folder / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', evaluation.name).strip('-').lower() or 'eval'}.eval.yaml"
        if path.exists():
            fail(f"{path} already exists; name another folder with --output.")
        path.write_text(yaml.safe_dump(evaluation.as_document(), sort_keys=False, allow_unicode=True), encoding="utf-8")
        written.append(path)
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in written], "not_used": found.unused}, indent=2))
        return
    for path, evaluation in zip(written, found.evals, strict=True):
        typer.echo(f"{path}\t{counted(len(evaluation.items), 'item')}, {counted(len(evaluation.criteria), 'grader')}")


def export(
    run_id: Annotated[str, typer.Argument(help="Id of a run, from `mens eval list`, or a part that no other id has.")],
    output: Annotated[Path | None, typer.Option(dir_okay=False, help="File to write. Default: stdout.")] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Write CSV: a column for each score, text on one line.")
    ] = False,
    promptfoo: Annotated[
        bool, typer.Option("--promptfoo", help="Write the run as promptfoo's configuration (YAML).")
    ] = False,
) -> None:
    """Write the items of a run, with answers and scores, as JSONL or CSV; or the run as promptfoo's configuration."""
    found = api.find_run(run_id)
    items = list(api.output_items(found))
    if promptfoo:
        text = _promptfoo(found, items)
    elif as_csv:
        text = _csv(items)
    else:
        text = "".join(json.dumps(as_line(item), ensure_ascii=False) + "\n" for item in items)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        note(f"{counted(len(items), 'item')} in {output}")


def _csv(items: Sequence[OutputItem]) -> str:
    lines = [as_line(item) for item in items]
    names = list(dict.fromkeys(name for line in lines for name in line["scores"]))
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(["item_index", "status", "item", "answer", *names])
    for line in lines:
        cells = [line["scores"].get(name, "") for name in names]
        item = json.dumps(line["item"], ensure_ascii=False)
        writer.writerow([line["item_index"], line["status"], item, line["answer"], *cells])
    return buffer.getvalue()


def _promptfoo(run: dict[str, Any], items: Sequence[OutputItem]) -> str:
    source = run["data_source"]
    if not source.get("input_messages"):
        fail("the run sent no prompts to a model, so it cannot be written as promptfoo's configuration.")
    criteria = api.find_eval(run["eval_id"])["testing_criteria"]
    rows = [item["datasource_item"] for item in items]
    evaluation = EvalFile(run["name"], rows, criteria, source["input_messages"], source.get("sampling_params") or {})
    models = [target["name"] for target in run["mens"]["models"]]
    document, unused = write_promptfoo(evaluation, models, connect().url)
    for line in unused:
        note(f"not included: {line}")
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
