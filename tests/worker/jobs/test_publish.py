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
from shared.replicas import replica_name
from worker.certificates import Limits, ServedBase
from worker.probe_chats import CHATS, EncodedChats
from worker.publish import Proof, certify

BASE, ADAPTER, KEY = "tiny-qwen3", "tiny@" + "a" * 64, "serving-key"
PROBES = [{"token_ids": [5, 6, 7, 8], "positions": [2, 3]}, {"token_ids": [9, 10], "positions": [1]}]
LIMITS = {"base": BASE, "served_digest": "d" * 64, "twin_of": None, "dtype": "float32", "max_lora_rank": 16}
SERVED = ServedBase(BASE, "d" * 64, None, "float32")
TOKENS = [1, 2, 3]


@dataclass
class Replica:
    """What the stand-in does, and what it was asked."""

    effect: float = 0.5
    noise: float = 0.0
    check: tuple[int, dict[str, Any]] = (200, {})
    limits: tuple[int, dict[str, Any]] = (200, LIMITS)
    tokens: tuple[int, dict[str, Any]] = (200, {"tokens": TOKENS})
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
            return self.limits if path == "/mens/limits" else self.check
        if path == "/tokenize":
            return self.tokens
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


def encode():
    return EncodedChats([(chat, TOKENS) for chat in CHATS])


def prove(*replicas: Replica, probes=PROBES, floor: float = 1e-3, timeout: float = 5.0, heed=lambda: None, **more: Any):
    fields = {"encode_chats": encode, "reference": None, "limits": Limits(floor), **more}
    urls = [replica.url for replica in replicas]
    return certify(urls, KEY, Proof(ADAPTER, probes, **fields), timeout_seconds=timeout, heed=heed)


def test_certificate_of_an_adapter_that_acts(serve):
    replica = serve(effect=0.5)
    found = prove(replica)[replica_name(replica.url)]
    assert (found["passed"], found["probes"], found["positions"], found["noise_rms_nats"]) == (True, 2, 3, 0.0)
    assert found["effect_rms_nats"] == found["effect_max_nats"] == pytest.approx(0.5)
    assert found["base"] == {"name": BASE, "digest": "d" * 64, "twin_of": None, "dtype": "float32"}
    assert found["template"]["equal"] and found["template"]["chats"] == [chat.name for chat in CHATS]
    assert found["parity"]["engine_error_rms_nats"] is None
    assert found["parity"]["base_shift_rms_nats"] is None


def test_what_the_replica_is_asked(serve):
    replica = serve()
    prove(replica)
    method, path, body = replica.seen[0]
    assert (method, unquote(path)) == ("GET", f"/mens/adapters/{ADAPTER}")
    assert path.count("/") == 3
    assert {one["_key"] for _, _, one in replica.seen} == {f"Bearer {KEY}"}
    assert body == {"_key": f"Bearer {KEY}"}
    completions = [one for _, path, one in replica.seen if path == "/v1/completions"]
    asked = [(one["model"], one["prompt"]) for one in completions]
    assert asked == [(model, probe["token_ids"]) for model in (BASE, BASE, ADAPTER) for probe in PROBES]
    assert all(one["prompt_logprobs"] == 0 and one["temperature"] == 0 for one in completions)
    chats = [one for _, path, one in replica.seen if path == "/tokenize"]
    assert [one["messages"] for one in chats] == [chat.messages for chat in CHATS]
    assert [one["add_generation_prompt"] for one in chats] == [chat.prompt for chat in CHATS]
    assert {one["model"] for one in chats} == {ADAPTER}
    assert [chat.name for chat, one in zip(CHATS, chats, strict=True) if "tools" in one] == ["tools"]


def test_the_base_is_asked_by_the_name_it_is_served_under(serve):
    replica = serve(limits=(200, {**LIMITS, "base": "tiny-twin", "twin_of": BASE}))
    found = prove(replica)[replica_name(replica.url)]
    assert found["base"]["twin_of"] == BASE
    assert {one["model"] for _, path, one in replica.seen if path == "/v1/completions"} == {"tiny-twin", ADAPTER}


def test_scores_of_the_trainer_and_of_the_reference_are_compared(serve):
    """The stand-in says -2.5 of every token of the adapter."""
    probes = [{**probe, "trained": [-2.4 for _ in probe["positions"]]} for probe in PROBES]
    asked = []

    def reference(served):
        asked.append(served)
        return [[-2.5 for _ in probe["positions"]] for probe in PROBES]

    one, other = serve(effect=0.5), serve(effect=0.5)
    found = prove(one, other, probes=probes, reference=reference)[replica_name(other.url)]["parity"]
    assert asked == [SERVED, SERVED]
    assert (found["engine_error_rms_nats"], found["engine_error_limit_nats"]) == (pytest.approx(0), 1e-4)
    assert (found["base_shift_rms_nats"], found["base_shift_limit_nats"]) == (pytest.approx(0.1), None)


def test_an_engine_that_computes_otherwise_is_refused(serve):
    def reference(_):
        return [[-2.6 for _ in probe["positions"]] for probe in PROBES]

    with pytest.raises(JobFailed) as failed:
        prove(serve(effect=0.5), reference=reference)
    assert failed.value.code == Code.ADAPTER_PARITY_FAILED
    assert "1.00e-01 nats" in failed.value.message


@pytest.mark.parametrize("tokens", [(200, {"tokens": [1, 2, 4]}), (200, {"tokens": [1, 2]}), (400, {})])
def test_other_tokens_are_refused(serve, tokens):
    replica = serve(tokens=tokens)
    with pytest.raises(JobFailed) as failed:
        prove(replica)
    assert failed.value.code == Code.ADAPTER_TEMPLATE_MISMATCH
    assert failed.value.details["certificates"][replica_name(replica.url)]["template"]["difference"]["chat"] == "plain"


@pytest.mark.parametrize("limits", [(200, {"base": BASE, "max_lora_rank": 16}), (404, {}), (200, [])])
def test_a_replica_of_another_release_is_told_as_such(serve, limits):
    with pytest.raises(JobFailed) as failed:
        prove(serve(limits=limits))
    assert failed.value.code == Code.SERVING_REFUSED
    assert "same release" in failed.value.remedy


def test_a_replica_that_does_not_tell_its_dtype_is_held_to_that_of_accelerators(serve):
    replica = serve(limits=(200, {**LIMITS, "dtype": None}))
    assert prove(replica)[replica_name(replica.url)]["base"]["dtype"] == "bfloat16"


def test_every_replica_is_proven(serve):
    one, other = serve(), serve(effect=0.0)
    with pytest.raises(JobFailed) as failed:
        prove(one, other)
    assert failed.value.code == Code.ADAPTER_NO_EFFECT
    assert replica_name(other.url) in failed.value.message
    assert set(failed.value.details["certificates"]) == {replica_name(one.url), replica_name(other.url)}
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
    assert prove(replica, heed=lambda: beats.append(1))[replica_name(replica.url)]["positions"] == 3
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
