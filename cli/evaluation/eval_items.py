"""The items of all evals of the tenant at the installation, so that none of them becomes training data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from cli.client.connection import call, find_all, send
from cli.evaluation import runs
from corpus.filters.eval_items import EvalContent
from shared.gates.policy_file import read_policy


def tenant_evals() -> Iterator[EvalContent]:
    """Yield the items of each run's source, and of each file that a policy names, once. Deleted files are left out."""
    files: dict[str, str] = {}
    for evaluation in runs.evals():
        for run in runs.runs(evaluation["id"]):
            source = (run.get("data_source") or {}).get("source") or {}
            if source.get("type") == "file_id":
                files.setdefault(source["id"], evaluation["name"])
            elif source.get("content"):
                yield EvalContent(evaluation["name"], source["content"])
    for policy in find_all("/v1/policies"):
        text = call("GET", f"/v1/policies/{quote(policy['name'], safe='')}")["source"]
        for name, template in read_policy(text).runs.items():
            files.setdefault(template.file, f"{policy['name']}: {name}")
    for file, name in files.items():
        response = send("GET", f"/v1/files/{quote(file, safe='')}/content")
        if response.is_success and (items := _items(response.text)):
            yield EvalContent(name, items)


def _items(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]
