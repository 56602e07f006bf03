"""schemathesis sends requests that an OpenAPI document permits and requests that it forbids: no 5xx, and no undeclared
response.

The document is the API's own and, for requests to models, also OpenAI's. The requests are seeded and their number is
limited. Requests to models go to the whole installation, so that vLLM has to handle them; all others go to an API with
a separate PostgreSQL, where they may change anything.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from api.services import make_services
from api.settings import ApiSettings
from shared.database.tenancy import SHARED, Role
from tests.support.api_installation import settings_for
from tests.support.api_process import ApiProcess, running_api
from tests.support.builders import BASE
from tests.support.openai_specification import OpenAISpecification
from tests.support.postgres import PostgresServer
from tests.support.tenants import Installation as Things
from tests.support.tiny_base import write_base
from tests.support.valkey import running_valkey
from tests.system import loop
from tests.system.fetched import environment

pytestmark = [pytest.mark.network, pytest.mark.timeout(420)]

SEED = "7"
PHASES = "coverage,fuzzing"
FEWEST = 300
"""A run that sends no more has not found its way in."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
LARGE = r"^POST /v1/(jobs|plans|evals|evals/[^/]+/runs|promotions:evaluate|fine_tuning/jobs|fine_tuning/alpha/graders/(run|validate))$"
"""Operations whose bodies are so large that the coverage phase would send eleven thousand, each with one wrong field."""
ENDLESS = r"^GET /v1/(events|jobs/[^/]+/events)$"
"""Streams of events, which have no end while something can still happen."""
TO_MODELS = r"^/(v1/(chat/completions|completions|responses|embeddings|tokenize|detokenize)|api/(chat|generate))$"


@pytest.fixture
def settings(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[ApiSettings]:
    url = postgres_server.fresh_url()
    with running_valkey(tmp_path) as valkey:
        settings = settings_for(tmp_path, write_base(tmp_path / "bases" / BASE))
        yield settings.model_copy(update={"database_url": url, "broker_url": valkey.url})
    postgres_server.drop(url)


@pytest.fixture
def things(settings: ApiSettings) -> Iterator[Things]:
    app = FastAPI()
    app.state.services = make_services(settings)
    yield Things(app)
    app.state.services.database.close()


@pytest.fixture
def api(settings: ApiSettings) -> Iterator[ApiProcess]:
    names = ("failed_authentications", "tenant_plans", "tenant_file_views")
    unlimited = {f"{name}_per_minute": "1000000" for name in names}
    with running_api(settings, database_url=settings.database_url, **unlimited) as api:
        yield api


def configuration(headers: dict[str, str], values: dict[str, list[str]]) -> str:
    """`schemathesis.toml`: headers of all requests, and fields and parameters with known values, which three of four requests have."""
    names = {field: re.sub(r"\W", "_", field) for field in values}
    lines = ["[headers]", *(f'{name} = "{value}"' for name, value in headers.items()), "[dictionaries]"]
    lines += [f"{name} = {{ values = {json.dumps(values[field])} }}" for field, name in names.items()]
    lines += ["[parameters]"]
    lines += [f'"{field}" = {{ dictionary = "{name}", probability = 0.75 }}' for field, name in names.items()]
    return "\n".join(lines) + "\n"


def without_coverage(names: str) -> str:
    """More of the configuration: these operations, named by method and path, are of the fuzzing phase alone."""
    return f"[[operations]]\ninclude-name-regex = {json.dumps(names)}\nphases.coverage.enabled = false\n"


def read_briefly(names: str) -> str:
    """More of the configuration: of these operations' answers only the beginning is read."""
    return f"[[operations]]\ninclude-name-regex = {json.dumps(names)}\nrequest-timeout = 0.5\n"


def run(
    folder: Path,
    document: str | Path,
    written: str,
    *options: str,
    examples: int,
    phases: str = PHASES,
    checks: tuple[str, ...] = CHECKS,
) -> None:
    """Do one run, which must find no fault, with this many examples per operation in addition to those of the coverage
    phase.
    """
    (folder / "schemathesis.toml").write_text(written)
    command = [str(environment("checkers")), "-m", "schemathesis.cli", "run", str(document), "--no-color"]
    command += ["--seed", SEED, "--max-examples", str(examples), "--phases", phases]
    command += ["--checks", ",".join(checks), "--continue-on-failure", "--request-timeout", "30", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=270, check=False)
    print("\n".join(done.stdout.splitlines()[-40:]))
    assert done.returncode == 0, done.stdout[done.stdout.find("= FAILURES =") :][:20_000] + done.stderr[-2_000:]
    sent = re.search(r"(\d+) generated", done.stdout)
    assert sent
    assert int(sent[1]) > FEWEST


@pytest.mark.parametrize(
    ("methods", "phases", "examples"),
    [
        pytest.param("--exclude-method", PHASES, 4, id="writes"),
        pytest.param("--include-method", "fuzzing", 6, id="reads"),
        pytest.param("--include-method", PHASES, 8, id="reads with each wrong parameter", marks=pytest.mark.long),
    ],
)
def test_api_answers_as_its_openapi_document_says(
    api: ApiProcess, things: Things, tmp_path: Path, methods: str, phases: str, examples: int
) -> None:
    jobs = [make(SHARED) for make in (things.finished_job, things.queued_job, things.paused_job)]
    adapters, aliases = ([make(SHARED) for _ in range(2)] for make in (things.adapter, things.alias))
    files = [things.file(SHARED) for _ in range(3)]
    values = {
        "path.job_id": jobs,
        "path.file_id": files,
        "path.name": adapters + aliases,
        "path.model": [*adapters, BASE],
        "path.key_id": [things.key(SHARED) for _ in range(3)],
        "body.model": [BASE],
        "body.training_file": files,
        "body.adapter": adapters,
        "body.contract.model.hf_repo": [BASE],
        "body.contract.data.train_file": files,
    }
    # Under a tenant that there is not, as the coverage phase would name one, each request is answered 404.
    headers = things.bearer(SHARED, Role.ADMIN) | {"X-Mens-Tenant": SHARED}
    written = configuration(headers, values) + without_coverage(LARGE) + read_briefly(ENDLESS)
    options = ("--exclude-path-regex", TO_MODELS, methods, "GET")
    run(tmp_path, f"{api.url}/v1/openapi.json", written, *options, examples=examples, phases=phases)


def test_models_answer_as_the_openapi_document_says(installation: loop.Installation, tmp_path: Path) -> None:
    connection = installation.connection
    headers = {"Authorization": f"Bearer {connection.key}", "X-Mens-Tenant": SHARED}
    written = configuration(headers, {"body.model": [loop.BASE]})
    run(tmp_path, f"{connection.url}/v1/openapi.json", written, "--include-path-regex", TO_MODELS, examples=10)


def test_models_take_what_openais_specification_permits(installation: loop.Installation, tmp_path: Path) -> None:
    """Requests of every form that OpenAI describes: vLLM fails on none, and answers have the form that it describes too."""
    connection, document = installation.connection, tmp_path / "openai.json"
    specification = OpenAISpecification(environment("checkers").parents[1])
    document.write_text(json.dumps(specification.excerpt("/chat/completions", "/completions", "/responses")))
    # Of responses the coverage phase would send six thousand, nearly all with one wrong field each.
    written = configuration(
        {"Authorization": f"Bearer {connection.key}"}, {"body.model": [loop.BASE]}
    ) + without_coverage("^POST /responses$")
    checks = ("not_a_server_error", "response_schema_conformance")
    run(tmp_path, document, written, "--url", f"{connection.url}/v1", examples=30, checks=checks)
