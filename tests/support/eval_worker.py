"""The work of a worker on a run of an eval, without a worker process; and the stock client that reads the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from openai import OpenAI

from shared.checkers.contained import ContainedCheckers
from shared.database.evaluation.items import NewItem
from shared.database.leases import Leases
from shared.evaluation.plan import EvaluationPlan
from shared.evaluation.results import Totals, outcome_of
from shared.evaluation.types import SourceItem
from shared.graders.remote_models import RemoteModels
from worker.evaluation.answers import Tools, judge_item


class StrictClient(OpenAI):
    """The stock client with strict validation, except for two values that its types do not allow, although OpenAI's
    server sends the one and accepts the other: an ``error`` that is null, and a file's purpose ``evals``.
    """

    def _process_response_data(self, *, data: Any, **named: Any) -> Any:
        for found in data.get("data", [data]) if isinstance(data, dict) else ():
            if found.get("purpose") == "evals":
                found["purpose"] = "user_data"
            for holder in (found, found.get("sample")):
                if isinstance(holder, dict) and holder.get("error", "") is None:
                    holder["error"] = {"code": "", "message": ""}
        return super()._process_response_data(data=data, **named)


def work(app: FastAPI, run_id: str, answer: Callable[[str], str] = str, *, finish: bool = True) -> None:
    """Do a worker's work on a run: each model's answer is a function of the question."""
    services = app.state.services
    leases = Leases(services.database, 60.0)
    lease = leases.claim(run_id, "worker-1")
    assert lease
    plan = EvaluationPlan.model_validate(lease.job.plan)
    totals, results = Totals.of(plan), []

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        turns = body["messages"] if plan.endpoint == "chat" else body["input"]
        text = answer(turns[-1]["content"])
        if plan.endpoint == "responses":
            output = {"type": "message", "content": [{"type": "output_text", "text": text}]}
            usage = {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}
            return {"output": [output], "status": "completed", "usage": usage}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage}

    with services.storage.local_file(plan.items.sha256) as path:
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    for number, row in enumerate(rows):
        judged = judge_item(
            plan, post, Tools(ContainedCheckers(), RemoteModels({}, None)), number, 0, SourceItem(**row)
        )
        totals.add(judged.result, judged.judges)
        results.append(judged.result)
    items = [
        NewItem(position=result.item_index, status=result.status, result=result.model_dump(mode="json"))
        for result in results
    ]
    leases.store_items(lease, run_id, items, totals.model_dump(mode="json"))
    if finish:
        leases.finish(lease, outcome_of(run_id, plan, totals, results).as_dict())
