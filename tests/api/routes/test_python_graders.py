"""Python graders over the API, with the stock client: they run in a sandbox, and one tenant's do not delay another's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import anyio
import openai
import pytest
from fastapi import FastAPI
from openai import OpenAI
from openai.types.fine_tuning.alpha import GraderRunResponse

from api import grader_sandboxes
from api.grader_sandboxes import GraderSandboxes
from shared.database.tenancy import Role
from shared.sandbox.levels import LEVELS, SandboxReport
from shared.sandbox.probe import missing
from tests.support.asgi_server import serve
from tests.support.compilers import CONTAINED, WITH_GCC

pytestmark = [
    pytest.mark.network,
    pytest.mark.sandbox,
    pytest.mark.skipif(all(map(missing, LEVELS)), reason=missing("landlock")),
]

# OpenAI's own example, as its guide has it: without a name.
GUIDE = """
from rapidfuzz import fuzz, utils

def grade(sample, item) -> float:
    output_text = sample["output_text"]
    reference_answer = item["reference_answer"]
    return fuzz.WRatio(output_text, reference_answer, processor=utils.default_process) / 100.0
"""
SLEEP = "import time\ndef grade(sample, item):\n    time.sleep(item['seconds'])\n    return 1.0"


@pytest.fixture
def url(app: FastAPI) -> Iterator[str]:
    sandboxes = GraderSandboxes("auto")
    app.state.services = replace(app.state.services, sandboxes=sandboxes)
    for served in serve(app, "on"):
        yield f"{served}/v1"
    anyio.run(sandboxes.close)


def client_of(app: FastAPI, url: str, tenant: str) -> OpenAI:
    _, secret = app.state.services.keys.create("trainer", tenant, Role.TRAINER)
    return OpenAI(base_url=url, api_key=secret, max_retries=0, _strict_response_validation=True)


def run(client: OpenAI, source: str, answer: str = "", **item: Any) -> GraderRunResponse:
    grader: Any = {"type": "python", "source": source}
    return client.fine_tuning.alpha.graders.run(grader=grader, model_sample=answer, item=item)


def errors_of(response: GraderRunResponse) -> dict[str, Any]:
    errors = response.metadata.errors.model_dump(by_alias=True)
    return {name: value for name, value in errors.items() if value not in (False, None)}


def test_the_guides_example_runs_and_validates(app: FastAPI, url: str) -> None:
    client = client_of(app, url, "acme")
    found = run(client, GUIDE, "fuzzy wuzzy was a bear", reference_answer="wuzzy fuzzy was a bear")
    assert (found.reward, found.metadata.type, errors_of(found)) == (0.95, "python", {})
    grader: Any = {"type": "python", "source": GUIDE}
    assert client.fine_tuning.alpha.graders.validate(grader=grader).grader
    with pytest.raises(openai.BadRequestError, match="not define a function") as caught:
        client.fine_tuning.alpha.graders.validate(grader={**grader, "source": "x = 1"})
    assert caught.value.param == "grader.source"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def grade(sample, item):\n    print('seen')\n    return item['missing']", "KeyError: 'missing'"),
        ("def grade(sample, item) -> float: return", "None', which is not a finite number"),
        ("def grade(", "line 1"),
        ("import socket\ndef grade(sample, item): socket.socket()", "Operation not permitted"),
    ],
)
def test_code_that_fails_gives_0_and_its_traceback(app: FastAPI, url: str, source: str, words: str) -> None:
    found = run(client_of(app, url, "acme"), source)
    errors = errors_of(found)
    assert found.reward == 0.0
    assert errors["python_grader_runtime_error"] is True
    assert words in errors["python_grader_runtime_error_details"]
    assert ("seen" in errors["python_grader_runtime_error_details"]) == ("seen" in source)


def test_a_multi_grader_runs_its_code(app: FastAPI, url: str) -> None:
    code = {"type": "python", "name": "code", "source": "def grade(sample, item): return len(sample['output_text'])"}
    grader: Any = {"type": "multi", "name": "m", "graders": {"code": code}, "calculate_output": "code / 4"}
    graders = client_of(app, url, "acme").fine_tuning.alpha.graders
    assert graders.run(grader=grader, model_sample="abc", item={}).reward == 0.75


@WITH_GCC
@CONTAINED
def test_a_compiler_judges_in_the_sandbox(app: FastAPI, url: str) -> None:
    graders = client_of(app, url, "acme").fine_tuning.alpha.graders
    grader: Any = {"type": "python", "source": "", "mens": {"check": "compiles", "language": "c"}}
    for answer, reward in (("int x;", 1.0), ("int x", 0.0)):
        found = graders.run(grader=grader, model_sample=answer, item={})
        assert (found.reward, errors_of(found)) == (reward, {})
    assert graders.validate(grader=grader).grader
    app.state.services.sandboxes._choice = "landlock"
    anyio.run(app.state.services.sandboxes.close)
    with pytest.raises(openai.BadRequestError, match="requires the sandbox level bubblewrap") as refused:
        graders.run(grader=grader, model_sample="int x;", item={})
    assert refused.value.code == "SANDBOX_UNAVAILABLE"


def test_a_sandbox_that_fails_is_the_servers_error(app: FastAPI, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.sandbox.child.sys.executable", "/nothing/here")
    monkeypatch.setattr(grader_sandboxes.GraderSandboxes, "report", lambda _: level_without_a_probe())
    found = run(client_of(app, url, "acme"), GUIDE, "a", reference_answer="a")
    errors = errors_of(found)
    assert found.reward == 0.0
    assert errors["python_grader_server_error"] is True
    assert errors["python_grader_server_error_type"] == "SANDBOX_FAILED"


def level_without_a_probe() -> SandboxReport:
    return SandboxReport("landlock")


def test_a_tenant_whose_code_sleeps_holds_up_no_other(app: FastAPI, url: str) -> None:
    slow, other = client_of(app, url, "acme"), client_of(app, url, "beta")
    run(other, GUIDE, "a", reference_answer="a")
    with ThreadPoolExecutor(4) as pool:
        sleeping = [pool.submit(run, slow, SLEEP, seconds=1) for _ in range(4)]
        assert run(other, GUIDE, "a", reference_answer="a").reward == 1.0
        assert other.models.list()
        assert not all(each.done() for each in sleeping), "they run one after the other, and are still at it"
        for each in sleeping:
            each.cancel()


def test_code_is_never_run_in_the_process_of_the_api(app: FastAPI, url: str) -> None:
    source = "import os\ndef grade(sample, item): return os.getpid() == item['pid'] or 'MENS_HOME' in os.environ"
    assert run(client_of(app, url, "acme"), source, pid=os.getpid()).reward == 0.0
