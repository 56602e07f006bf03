"""``mens eval import``: evals out of promptfoo's configuration."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer
import yaml

from cli.client.connection import fail, fail_with, note
from cli.client.json_errors import Json
from cli.evaluation.eval_file import read_document
from cli.evaluation.promptfoo.reading import read_promptfoo
from shared.errors import MensError


def import_promptfoo(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="promptfooconfig.yaml, or JSON.")],
    output: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for the eval files. Default: beside FILE.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read promptfoo's configuration: an eval file for each prompt and each form of its tests.

    Assertions become graders: equals, not-equals, contains, icontains, contains-any, starts-with, regex, is-json, rouge-n, bleu,
    gleu, meteor. What is not used (code, rubrics, providers, files) is named on stderr. Then: `mens eval run NAME.eval.yaml --model MODEL`.
    """
    try:
        found = read_promptfoo(read_document(file), file.stem)
    except MensError as error:
        fail_with(error)
    for line in found.unused:
        note(f"not used: {line}")
    if not found.evals:
        fail(f"{file} has no prompt and test that can be used.")
    folder = output or file.parent
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for evaluation in found.evals:
        path = folder / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', evaluation.name).strip('-').lower() or 'eval'}.eval.yaml"
        if path.exists():
            fail(f"{path} is there already; name another folder with --output.")
        path.write_text(yaml.safe_dump(evaluation.as_document(), sort_keys=False, allow_unicode=True), encoding="utf-8")
        written.append(path)
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in written], "not_used": found.unused}, indent=2))
        return
    for path, evaluation in zip(written, found.evals, strict=True):
        typer.echo(f"{path}\t{len(evaluation.items)} items, {len(evaluation.criteria)} graders")
