"""Shutdown of an API process: responses in flight may finish, endless ones are ended, and new connections are refused."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from api.migrate import migrate
from api.settings import ApiSettings
from cli.standalone.ports import free_port
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.records import Kind, Submission
from tests.support.api_installation import settings_for
from tests.support.api_process import responds, running_api
from tests.support.asgi_server import serve
from tests.support.builders import BASE
from tests.support.otlp_receiver import OtlpReceiver, running_receiver
from tests.support.scripted_replica import ScriptedReplica
from tests.support.waiting import eventually

pytestmark = pytest.mark.network

REQUEST = {"model": BASE, "messages": [{"role": "user", "content": "hello"}], "stream": True}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PIECES = [b'data: {"piece": 1}\n\n', b'data: {"piece": 2}\n\n', b"data: [DONE]\n\n"]


@pytest.fixture
def replica() -> ScriptedReplica:
    return ScriptedReplica(pieces=PIECES)


@pytest.fixture
def installation(tmp_path: Path, base_folder: Path, replica: ScriptedReplica) -> Iterator[ApiSettings]:
    """Settings of an installation with a catalogue and a replica."""
    settings = settings_for(tmp_path, base_folder)
    migrate(settings.database_url)
    servers = serve(replica)
    yield settings.model_copy(update={"serving_urls": [next(servers)]})
    next(servers, None)


@pytest.fixture
def client(installation: ApiSettings) -> Iterator[httpx.Client]:
    database = Database(installation.database_url)
    secret = Keys(database).create("test")[1]
    database.close()
    with httpx.Client(headers={"Authorization": f"Bearer {secret}"}, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def api(installation: ApiSettings, client: httpx.Client) -> Iterator[subprocess.Popen[bytes]]:
    """The process; the client knows its address."""
    with running_api(installation, drain_seconds="60") as api:
        client.base_url = api.url
        yield api.process


def test_stream_in_flight_is_completed(
    api: subprocess.Popen[bytes], client: httpx.Client, replica: ScriptedReplica
) -> None:
    replica.go_on.clear()
    with client.stream("POST", "/v1/chat/completions", json=REQUEST) as response:
        pieces = response.iter_raw()
        seen = next(pieces)
        api.send_signal(signal.SIGTERM)
        eventually(lambda: not responds(client))
        assert api.poll() is None, "the process waits"
        replica.go_on.set()
        assert seen + b"".join(pieces) == b"".join(PIECES)
    assert api.wait(50) == -signal.SIGTERM, "no response is in flight any more"


def test_event_stream_of_a_running_job_is_ended(
    api: subprocess.Popen[bytes], client: httpx.Client, installation: ApiSettings
) -> None:
    database = Database(installation.database_url)
    submission = Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={})
    job, _ = Jobs(database).submit(submission)
    database.close()
    begun = time.monotonic()
    with client.stream("GET", f"/v1/jobs/{job.id}/events") as response:
        pieces = response.iter_text()
        assert "id:" in next(pieces)
        api.send_signal(signal.SIGTERM)
        assert "event: job" not in "".join(pieces), "the job is not over"
    api.wait(60)
    assert time.monotonic() - begun < 50, "less than the time that requests may take"


@dataclass
class Observed:
    """Metrics, log and spans of one process for the same few requests."""

    key: str
    own_port: httpx.Response
    scraped: httpx.Response
    without_key: httpx.Response
    log: str
    receiver: OtlpReceiver


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, base_folder: Path) -> Iterator[Observed]:
    """A process with a port for metrics, a log of objects and a receiver of spans, which has ended."""
    folder = tmp_path_factory.mktemp("observed")
    settings = settings_for(folder, base_folder)
    migrate(settings.database_url)
    database = Database(settings.database_url)
    key = Keys(database).create("test")[1]
    database.close()
    replicas = serve(ScriptedReplica(pieces=PIECES))
    settings = settings.model_copy(update={"serving_urls": [next(replicas)]})
    scrape, log = f"http://127.0.0.1:{free_port()}/metrics", folder / "log"
    with pytest.MonkeyPatch.context() as patch, running_receiver() as receiver, log.open("wb") as file:
        patch.setenv("NO_PROXY", "127.0.0.1")
        more = {
            "metrics_port": scrape[17:-8],
            "metrics_key": "scrape",
            "log_format": "json",
            "otlp_endpoint": receiver.url,
        }
        headers = {"Authorization": f"Bearer {key}"}
        with (
            running_api(settings, file, **more) as api,
            httpx.Client(base_url=api.url, headers=headers, timeout=30, trust_env=False) as client,
        ):
            client.post(
                "/v1/chat/completions",
                json=REQUEST,
                headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"},
            )
            client.get("/v1/jobs/none", headers={"traceparent": "00-nonsense-01"})
            client.get(f"/v1/jobs/{key}?key={key}", headers={"X-Request-Id": key})
            client.get("/v1/jobs")
            own_port = client.get("/metrics")
            scraped = httpx.get(scrape, headers={"Authorization": "Bearer scrape"}, trust_env=False)
            without_key = httpx.get(scrape, trust_env=False)
            api.process.send_signal(signal.SIGTERM)
            api.process.wait(30)
        yield Observed(key, own_port, scraped, without_key, log.read_text(), receiver)
    next(replicas, None)


def test_metrics_are_on_a_port_of_their_own(observed: Observed) -> None:
    assert observed.own_port.status_code == 404, "not where tenants reach it"
    assert observed.without_key.status_code == 401
    text = observed.scraped.text
    assert 'mens_api_requests_total{method="GET",route="/v1/jobs",status="200"} 1.0' in text
    assert "mens_database_reachable 1.0" in text
    assert "process_open_fds" in text


def test_log_is_objects_with_ids_and_no_key(observed: Observed) -> None:
    lines = [json.loads(line) for line in observed.log.splitlines()]
    chat = next(line for line in lines if line.get("request_id") == "mine")
    assert (chat["tenant"], chat["model"], chat["route"]) == ("shared", BASE, "/v1/chat/completions")
    assert (chat["status"], chat["method"], chat["level"]) == (200, "POST", "INFO")
    refused = next(line for line in lines if line.get("code") == "JOB_NOT_FOUND")
    assert refused["status"] == 404
    assert any(line["logger"].startswith("uvicorn") for line in lines)
    assert observed.key not in observed.log
    assert "hello" not in observed.log, "nor what was asked"


def test_chat_is_a_span_of_the_callers_trace_with_its_first_byte(observed: Observed) -> None:
    (chat,) = observed.receiver.named("POST /v1/chat/completions")
    assert (chat.service, chat.trace_id, chat.parent_id, chat.events) == ("mens-api", TRACE, PARENT, ["first byte"])
    expected = {
        "mens.request_id": "mine",
        "mens.tenant": "shared",
        "mens.model": BASE,
        "http.response.status_code": 200,
    }
    assert chat.attributes | expected == chat.attributes
    assert "hello" not in str(observed.receiver.spans)
    jobs = observed.receiver.named("GET /v1/jobs/{job_id}")
    assert [job.attributes["mens.code"] for job in jobs] == ["JOB_NOT_FOUND", "REQUEST_INVALID"]
    assert {job.parent_id for job in jobs} == {""}, "what is no traceparent begins a trace"
