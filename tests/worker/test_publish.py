"""Publishing, against a small stand-in for serving replicas."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

import worker.publish
from shared.errors import ArtifactInvalid, Code, JobFailed, Unavailable
from worker.publish import certify

BASE, ADAPTER, KEY = "tiny-qwen3", "tiny@" + "a" * 64, "serving-key"
PROBES = [{"token_ids": [5, 6, 7, 8], "positions": [2, 3]}, {"token_ids": [9, 10], "positions": [1]}]


@dataclass
class Replica:
    """What the stand-in does, and what it was asked."""

    effect: float = 0.5
    noise: float = 0.0
    check: tuple[int, dict[str, Any]] = (200, {})
    completion_status: int = 200
    away: int = 0
    url: str = ""
    seen: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    calls: int = 0

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.seen.append((method, path, body))
        if self.away > 0:
            self.away -= 1
            return 503, {}
        if method == "GET":
            return self.check
        if self.completion_status != 200:
            return self.completion_status, {"error": {"message": "too long"}}
        self.calls += 1
        shift = self.effect if body["model"] == ADAPTER else self.noise * self.calls
        entries = [{str(token): {"logprob": -2.0 - shift}, "1": {"logprob": -9.0}} for token in body["prompt"]]
        return 200, {"choices": [{"prompt_logprobs": [None, *entries[1:]]}]}


def handler(replica: Replica) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else {}
            body["_key"] = self.headers.get("Authorization")
            status, value = replica.answer(self.command, self.path, body)
            raw = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = _reply

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def serve() -> Iterator[Callable[..., Replica]]:
    servers = []

    def start(**behaviour: Any) -> Replica:
        replica = Replica(**behaviour)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(replica))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        replica.url = f"http://127.0.0.1:{server.server_address[1]}"
        return replica

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(worker.publish, "RETRY_SECONDS", 0.01)


def prove(*replicas: Replica, probes=PROBES, floor: float = 1e-3, timeout: float = 5.0, heed=lambda: None):
    urls = [replica.url for replica in replicas]
    return certify(urls, KEY, BASE, ADAPTER, probes, effect_floor=floor, timeout_seconds=timeout, heed=heed)


def test_certificate_of_an_adapter_that_acts(serve):
    replica = serve(effect=0.5)
    assert prove(replica) == {
        replica.url: {
            "probes": 2,
            "positions": 3,
            "effect_rms_nats": pytest.approx(0.5),
            "effect_max_nats": pytest.approx(0.5),
            "noise_rms_nats": 0.0,
        }
    }


def test_what_the_replica_is_asked(serve):
    replica = serve()
    prove(replica)
    method, path, body = replica.seen[0]
    assert (method, unquote(path)) == ("GET", f"/mens/adapters/{ADAPTER}")
    assert path.count("/") == 3
    assert {one["_key"] for _, _, one in replica.seen} == {f"Bearer {KEY}"}
    assert body == {"_key": f"Bearer {KEY}"}
    asked = [(one["model"], one["prompt"]) for _, path, one in replica.seen[1:]]
    expected = [(model, probe["token_ids"]) for probe in PROBES for model in (BASE, BASE, ADAPTER)]
    assert asked == expected
    assert all(one["prompt_logprobs"] == 0 and one["temperature"] == 0 for _, _, one in replica.seen[1:])


def test_every_replica_is_proven(serve):
    one, other = serve(), serve(effect=0.0)
    with pytest.raises(JobFailed) as failed:
        prove(one, other)
    assert failed.value.code == Code.ADAPTER_NO_EFFECT
    assert other.url in failed.value.message
    assert set(failed.value.details["certificates"]) == {one.url, other.url}
    assert not failed.value.retryable


@pytest.mark.parametrize(
    ("effect", "noise", "floor", "acts"),
    [
        (0.002, 0.0, 1e-3, True),
        (0.001, 0.0, 1e-3, False),
        (0.0005, 0.0, 1e-3, False),
        (float("nan"), 0.0, 1e-3, False),
        (0.0, 0.0, 1e-3, False),
        (0.5, 0.2, 1e-3, False),
    ],
)
def test_effect_must_exceed_floor_and_noise(serve, effect, noise, floor, acts):
    replica = serve(effect=effect, noise=noise)
    if acts:
        assert prove(replica, floor=floor)
    else:
        with pytest.raises(JobFailed) as failed:
            prove(replica, floor=floor)
        assert failed.value.code == Code.ADAPTER_NO_EFFECT


def test_no_probes_prove_nothing(serve):
    with pytest.raises(JobFailed) as failed:
        prove(serve(), probes=[])
    assert failed.value.code == Code.ADAPTER_NO_EFFECT


@pytest.mark.parametrize(
    ("code", "passed_on"),
    [("ADAPTER_RANK_TOO_LARGE", Code.ADAPTER_RANK_TOO_LARGE), ("SOMETHING_NEWER", Code.SERVING_REFUSED)],
)
def test_refusal_is_passed_on_with_its_code(serve, code, passed_on):
    error = {"code": code, "message": "Rank 17 is over 16.", "remedy": "Lower it.", "param": "rank"}
    replica = serve(check=(422, {"error": error}))
    with pytest.raises(ArtifactInvalid) as refused:
        prove(replica)
    assert (refused.value.code, refused.value.message) == (passed_on, "Rank 17 is over 16.")
    assert (refused.value.remedy, refused.value.param) == ("Lower it.", "rank")
    assert not refused.value.retryable
    assert len(replica.seen) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_serving_key_is_told_as_such(serve, status):
    with pytest.raises(JobFailed) as failed:
        prove(serve(check=(status, {})))
    assert failed.value.code == Code.SERVING_REFUSED
    assert "MENS_SERVING_KEY" in failed.value.remedy


def test_refused_probe(serve):
    with pytest.raises(JobFailed) as failed:
        prove(serve(completion_status=400))
    assert failed.value.code == Code.SERVING_REFUSED
    assert "too long" in failed.value.message


def test_replica_that_comes_back_is_waited_for(serve):
    replica = serve(away=3)
    beats = []
    assert prove(replica, heed=lambda: beats.append(1))[replica.url]["positions"] == 3
    assert len(beats) == 4


def test_replica_that_stays_away_is_told_after_the_timeout(serve):
    with pytest.raises(Unavailable) as failed:
        prove(serve(away=10_000), timeout=0.05)
    assert failed.value.code == Code.SERVING_UNAVAILABLE
    assert failed.value.retryable


def test_nobody_listens(serve):
    gone = Replica(url="http://127.0.0.1:9")
    with pytest.raises(Unavailable) as failed:
        prove(gone, timeout=0.0)
    assert failed.value.code == Code.SERVING_UNAVAILABLE


def test_a_job_that_must_stop_does_not_wait_on(serve):
    class Stop(Exception):
        pass

    replica = serve(away=10_000)

    def heed() -> None:
        if len(replica.seen) >= 2:
            raise Stop

    with pytest.raises(Stop):
        prove(replica, heed=heed, timeout=60)
    assert len(replica.seen) == 2


def test_no_replica_configured():
    with pytest.raises(JobFailed) as failed:
        prove()
    assert failed.value.code == Code.SERVING_UNAVAILABLE
    assert not failed.value.retryable
