"""Every example of graders and evals that OpenAI has published, through the routes, by the stock Python client and the Node client.

`golden/` has the examples, each with its source. Those of the specification are unchanged, except that Python is
written as JSON and long prompts are shortened. Those of the guides ("Graders", "Reinforcement fine-tuning", "Evals")
have the original fields, templates and formulas, but our own texts. Requests use OpenAI's model names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from fastapi import FastAPI
from openai import OpenAI

from api.grader_sandboxes import GraderSandboxes
from shared.database.names.aliases import Actor
from shared.database.names.foreign_names import ForeignNames
from shared.database.routing import StandsFor
from shared.database.tenancy import Role
from shared.sandbox.levels import LEVELS
from shared.sandbox.probe import missing
from tests.support.asgi_server import serve
from tests.support.builders import BASE
from tests.support.eval_worker import StrictClient, work
from tests.support.openai_specification import OpenAISpecification
from tests.system.fetched import environment, node_client

pytestmark = [
    pytest.mark.network,
    pytest.mark.sandbox,
    pytest.mark.skipif(all(map(missing, LEVELS)), reason=missing("landlock")),
]

GOLDEN = Path(__file__).with_name("golden")
GRADERS: list[dict[str, Any]] = json.loads((GOLDEN / "grader_examples.json").read_text())
EVALS: list[dict[str, Any]] = json.loads((GOLDEN / "eval_examples.json").read_text())
MODELS = [
    "gpt-4.1", "gpt-4o-2024-08-06", "gpt-4o-mini", "gpt-4o-mini-2024-07-18", "gpt-5-mini", "gpt-audio", "o3-mini", "o4-mini-2025-04-16",
]  # fmt: skip
NO_REQUEST = {
    "Eval", "EvalApiError", "EvalCustomDataSourceConfig", "EvalList", "EvalLogsDataSourceConfig", "EvalResponsesSource", "EvalRun",
    "EvalRunList", "EvalRunOutputItem", "EvalRunOutputItemList", "EvalStoredCompletionsDataSourceConfig", "EvalStoredCompletionsSource",
    "WebhookEvalRunCanceled", "WebhookEvalRunFailed", "WebhookEvalRunSucceeded",
}  # fmt: skip
"""Schemas whose examples are responses, not requests."""


class Judge:
    """A replica that gives every score as .5, and of labels the first."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        answer: dict[str, Any] = {}
        if scope["method"] == "POST":
            body = json.loads((await receive())["body"])
            assert all(isinstance(turn["content"], str) for turn in body["messages"]), body
            result = body["response_format"]["json_schema"]["schema"]["properties"]["result"]
            said = json.dumps({"steps": [], "result": result["enum"][0] if "enum" in result else 0.5})
            usage = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
            answer = {"choices": [{"message": {"content": said}, "finish_reason": "stop"}], "usage": usage}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@pytest.fixture
def served(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Base URL and a trainer's key of an installation that has OpenAI's names, a sandbox, and a model that judges."""
    sandboxes = GraderSandboxes("auto")
    app.state.services = services = replace(app.state.services, sandboxes=sandboxes)
    names, base = ForeignNames(services.database, "acme"), StandsFor(kind="base", name=BASE)
    for model in MODELS:
        names.set(model, base, Actor(id="key-1", name="ada"), bases=frozenset({BASE}))
    _, secret = services.keys.create("trainer", "acme", Role.TRAINER)
    for replica_url in serve(Judge()):
        services.settings.serving_urls[:] = [replica_url]
        for url in serve(app, "on"):
            yield f"{url}/v1", secret
    anyio.run(sandboxes.close)


@pytest.fixture
def client(served: tuple[str, str]) -> OpenAI:
    return StrictClient(base_url=served[0], api_key=served[1], max_retries=0, _strict_response_validation=True)


@pytest.fixture(scope="module")
def specification() -> OpenAISpecification:
    return OpenAISpecification(environment("checkers").parents[1])


def code_of(error: openai.APIStatusError) -> str:
    body: Any = error.body
    return str(body["mens"]["code"])


def has_word_net() -> bool:
    from shared.errors import InvalidRequest
    from shared.graders.text_similarity import similarity

    try:
        return similarity("meteor", "a", "b") == 0
    except InvalidRequest:
        return False


# -- graders -------------------------------------------------------------------------------------------------------


def expected_of(example: dict[str, Any]) -> dict[str, Any]:
    """The example, refused where it needs what this machine has not."""
    lacks = example.get("needs") == "wordnet" and not has_word_net()
    return example | ({"refused": ["run", "GRADER_UNSUPPORTED"]} if lacks else {})


def outcome_of_grader(client: OpenAI, example: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of a grader, in the fields of an example."""
    sent = example["grader"]
    # The exceptions of docs/evaluation.md: the client's types take neither a map of graders, which is what OpenAI sends, nor a label_model,
    # which no fine-tuning job of OpenAI's takes by itself.
    checks = lenient(client) if sent["type"] in ("multi", "label_model") else client
    try:
        understood = checks.fine_tuning.alpha.graders.validate(grader=sent).grader
    except openai.BadRequestError as error:
        return {"refused": ["validate", code_of(error)]}
    assert understood
    told = understood.model_dump(warnings=False)
    assert told["name"] == sent.get("name", sent["type"])
    assert {name: told[name] for name in ("type", "calculate_output", "evaluation_metric", "operation") if name in sent} == {
        name: sent[name] for name in ("type", "calculate_output", "evaluation_metric", "operation") if name in sent
    }  # fmt: skip
    try:
        found = client.fine_tuning.alpha.graders.run(
            grader=sent, model_sample=example["model_sample"], item=example["item"]
        )
    except openai.BadRequestError as error:
        return {"refused": ["run", code_of(error)]}
    flags = [name for name, value in found.metadata.errors.model_dump(by_alias=True).items() if value is True]
    assert found.metadata.type == sent["type"]
    if sent["type"] in ("score_model", "label_model"):
        assert (found.metadata.sampled_model_name, found.metadata.token_usage) == (sent["model"], 7)
    return {"reward": found.reward, "flags": flags, "sub_rewards": found.sub_rewards}


def lenient(client: OpenAI) -> OpenAI:
    """A client that takes any answer."""
    return OpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0)


@pytest.mark.parametrize("kind", ["string_check", "text_similarity", "score_model", "label_model", "python", "multi"])
def test_published_graders_are_validated_and_run(client: OpenAI, kind: str) -> None:
    examples = [expected_of(example) for example in GRADERS if example["grader"]["type"] == kind]
    assert examples
    for example in examples:
        found = outcome_of_grader(client, example)
        if "refused" in example:
            assert found == {"refused": example["refused"]}, example["source"]
        else:
            assert found == {
                "reward": pytest.approx(example["reward"], abs=1e-9),
                "flags": example.get("flags", []),
                "sub_rewards": example.get("sub_rewards", {}),
            }, example["source"]


# -- evals ---------------------------------------------------------------------------------------------------------


def made_eval(client: OpenAI, example: dict[str, Any]) -> Any:
    sent = example["eval"]
    made = client.evals.create(**sent)
    assert (made.object, made.data_source_config.type) == ("eval", sent["data_source_config"]["type"])
    assert [criterion.name for criterion in made.testing_criteria] == [
        each["name"] for each in sent["testing_criteria"]
    ]
    assert made.metadata == sent.get("metadata", {})
    if "update" in example:
        client.evals.update(made.id, **example["update"])
        updated = client.evals.retrieve(made.id)
        assert {name: getattr(updated, name) for name in example["update"]} == example["update"]
    return made


def source_of(client: OpenAI, example: dict[str, Any]) -> dict[str, Any]:
    """The run's request, with the file that its rows were uploaded as."""
    run = json.loads(json.dumps(example["run"]))
    if "rows" in example:
        rows = "".join(json.dumps(row) + "\n" for row in example["rows"]).encode()
        run["data_source"]["source"]["id"] = client.files.create(file=("rows.jsonl", rows), purpose="evals").id
    return dict(run)


@pytest.mark.parametrize("example", EVALS, ids=[example["source"][0] for example in EVALS])
def test_published_evals_are_made_and_run(
    app: FastAPI, client: OpenAI, specification: OpenAISpecification, example: dict[str, Any]
) -> None:
    made = made_eval(client, example)
    faults = [specification.fault("Eval", client.get(f"/evals/{made.id}", cast_to=object))]
    if "run" in example:
        body = source_of(client, example)
        if "refused" in example:
            with pytest.raises(openai.BadRequestError) as caught:
                client.evals.runs.create(made.id, **body)
            assert ["run", code_of(caught.value)] == example["refused"]
            return
        run = client.evals.runs.create(made.id, **body)
        assert (run.status, run.model) == ("queued", body["data_source"].get("model", ""))
        work(app, run.id, lambda _: "Markets")
        done = client.evals.runs.retrieve(run.id, eval_id=made.id)
        assert done.status == "completed"
        items = list(client.evals.runs.output_items.list(run.id, eval_id=made.id))
        assert done.result_counts.total == len(items) > 0
        path = f"/evals/{made.id}/runs/{run.id}"
        faults += [
            specification.fault("EvalRun", client.get(path, cast_to=object)),
            specification.fault("EvalRunList", client.get(f"/evals/{made.id}/runs", cast_to=object)),
            specification.fault("EvalRunOutputItemList", client.get(f"{path}/output_items", cast_to=object)),
            specification.fault("EvalRunOutputItem", client.get(f"{path}/output_items/{items[0].id}", cast_to=object)),
        ]
        assert client.evals.runs.delete(run.id, eval_id=made.id).deleted
    assert client.evals.delete(made.id).deleted
    assert [fault for fault in faults if fault] == []


# -- all of them, and the other client -----------------------------------------------------------------------------


def test_no_example_of_the_specification_is_left_out(specification: OpenAISpecification) -> None:
    given = {example["source"] for example in GRADERS} | {source for example in EVALS for source in example["source"]}
    schemas = {
        name
        for name, schema in specification.components["schemas"].items()
        if ("Eval" in name or "Grader" in name) and "example" in schema.get("x-oaiMeta", {})
    }
    assert sorted(schemas - NO_REQUEST - {source.rpartition(" ")[2] for source in given}) == []
    graders = specification.paths["/fine_tuning/alpha/graders/run"]["post"]["x-oaiMeta"]["examples"]
    numbered = {f"specification: POST /fine_tuning/alpha/graders/run, {number + 1}" for number in range(len(graders))}
    paths = {path for path in specification.paths if path.startswith(("/evals", "/fine_tuning/alpha"))}
    posts = {f"specification: POST {path}" for path in paths if "post" in specification.paths[path]}
    # A cancellation has no body: the clients' programs cancel.
    bodiless = {
        "specification: POST /evals/{eval_id}/runs/{run_id}",
        "specification: POST /fine_tuning/alpha/graders/run",
    }
    assert sorted((numbered | posts) - bodiless - given) == []


def test_the_node_client_has_the_same_of_all_of_them(served: tuple[str, str], tmp_path: Path) -> None:
    graders = tmp_path / "graders.json"
    graders.write_text(json.dumps([expected_of(example) for example in GRADERS]))
    done = subprocess.run(
        [shutil.which("node") or "node", "examples.mjs", str(graders), str(GOLDEN / "eval_examples.json")],
        cwd=node_client(),
        env={**os.environ, "OPENAI_BASE_URL": served[0], "OPENAI_API_KEY": served[1]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{len(GRADERS)} graders, {len(EVALS)} evals\n"), (
        done.stdout + done.stderr
    )
