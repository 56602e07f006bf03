"""Publishing, with fake serving replicas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from email.message import Message
from typing import Any
from urllib.parse import unquote

import pytest

import worker.jobs.publish
from shared.contract.plan import PlannedBase
from shared.errors import ArtifactInvalid, Code, JobFailed, Unavailable
from shared.replicas import TrainedWeights, replica_name
from tests.support.http_stub import http_stub
from worker.jobs.certificates import CertificateLimits, ServedBase
from worker.jobs.publish import ProbeSet, certify
from worker.probe_chats import ARGUMENTS as CALLED_WITH
from worker.probe_chats import CHATS, TOOLS, EncodedChats, WrittenCall

BASE, ADAPTER, KEY = "tiny-qwen3", "tiny@" + "a" * 64, "serving-key"
PROBES = [{"token_ids": [5, 6, 7, 8], "positions": [2, 3]}, {"token_ids": [9, 10], "positions": [1]}]
TRAINED_ON = PlannedBase(name=BASE, digests={"model.safetensors": "0" * 64})
LIMITS = {
    "base": BASE,
    "base_digest": TRAINED_ON.digest,
    "served_digest": "d" * 64,
    "twin_of": None,
    "dtype": "float32",
    "max_lora_rank": 16,
}
SERVED = ServedBase(BASE, "d" * 64, None, "float32")
TOKENS = [1, 2, 3]
ENDS = {7: "<|endoftext|>", 9: "<|im_end|>"}


@dataclass
class FakeReplica:
    """A replica whose responses the test sets.

    Attributes:
        effect, noise: nats by which the adapter's, and each repetition of the base's, log-probabilities differ.
        default_prompt: token ids from which it answers a chat.
        call: its response to the chat whose answer calls a tool.
        away: how many requests get a 503 first.
        seen: method, path and body of each request.
        keys: the keys that they carried.
    """

    effect: float = 0.5
    noise: float = 0.0
    check: tuple[int, dict[str, Any]] = (200, {})
    limits: tuple[int, dict[str, Any]] = (200, LIMITS)
    tokens: tuple[int, dict[str, Any]] = (200, {"tokens": TOKENS})
    default_prompt: list[int] = field(default_factory=lambda: list(TOKENS))
    call: tuple[int, dict[str, Any]] = (500, {})
    completion_status: int = 200
    finish_reason: str = "stop"
    stop_refusal: str = ""
    away: int = 0
    url: str = ""
    seen: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    calls: int = 0

    def respond(self, method: str, path: str, content: bytes, headers: Message) -> tuple[int, dict[str, Any]]:
        body = json.loads(content) if content else {}
        self.seen.append((method, path, body))
        self.keys.add(headers.get("Authorization"))
        if self.away > 0:
            self.away -= 1
            return 503, {}
        if method == "GET":
            return self.limits if path == "/mens/limits" else self.check
        if path == "/tokenize":
            return self.tokens
        if "structured_outputs" in body:
            return self.call
        if path == "/v1/chat/completions":
            return 200, {"prompt_token_ids": self.default_prompt, "choices": []}
        if self.completion_status != 200:
            return self.completion_status, {"error": {"message": "too long"}}
        if "allowed_token_ids" in body:
            if self.stop_refusal:
                return 400, {"error": {"message": self.stop_refusal}}
            ended = self.finish_reason == "stop"
            usage = {"completion_tokens": 1 if ended else body["max_tokens"]}
            return 200, {"choices": [{"finish_reason": self.finish_reason}], "usage": usage}
        self.calls += 1
        shift = self.effect if body["model"] == ADAPTER else self.noise * self.calls
        entries = [{str(token): {"logprob": -2.0 - shift}, "1": {"logprob": -9.0}} for token in body["prompt"]]
        return 200, {"choices": [{"prompt_logprobs": [None, *entries[1:]]}]}


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeReplica]]:
    """Starts fake replicas; keywords are their attributes."""
    with ExitStack() as servers:

        def start(**behaviour: Any) -> FakeReplica:
            replica = FakeReplica(**behaviour)
            replica.url = servers.enter_context(http_stub(replica.respond))
            return replica

        yield start


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(worker.jobs.publish, "RETRY_SECONDS", 0.01)


def encode():
    return EncodedChats([(chat, TOKENS) for chat in CHATS], ends=ENDS)


def publish(
    *replicas: FakeReplica,
    probes=PROBES,
    floor: float = 1e-3,
    timeout: float = 5.0,
    raise_if_stopped=lambda: None,
    **more: Any,
):
    fields = {"encode_chats": encode, "reference": None, "limits": CertificateLimits(floor), **more}
    urls = [replica.url for replica in replicas]
    return certify(
        urls,
        KEY,
        ProbeSet(ADAPTER, TRAINED_ON, probes, **fields),
        timeout_seconds=timeout,
        raise_if_stopped=raise_if_stopped,
    )


def test_certificate_of_an_adapter_with_effect(serve):
    replica = serve(effect=0.5)
    found = publish(replica)[replica_name(replica.url)]
    assert (found["passed"], found["probes"], found["positions"], found["noise_rms_nats"]) == (True, 2, 3, 0.0)
    assert found["effect_rms_nats"] == found["effect_max_nats"] == pytest.approx(0.5)
    assert found["base"] == {"name": BASE, "digest": "d" * 64, "twin_of": None, "dtype": "float32"}
    assert found["template"]["equal"] and found["template"]["chats"] == [chat.name for chat in CHATS]
    assert found["parity"]["engine_error_rms_nats"] is None
    assert found["parity"]["base_shift_rms_nats"] is None


def test_requests_to_the_replica(serve):
    replica = serve()
    publish(replica)
    assert replica.seen[0] == ("GET", "/mens/limits", {}), "what it serves comes first"
    method, path, body = replica.seen[1]
    assert (method, unquote(path)) == ("GET", f"/mens/adapters/{ADAPTER}")
    assert path.count("/") == 3
    assert body == {}
    assert replica.keys == {f"Bearer {KEY}"}
    asked = [one for _, path, one in replica.seen if path == "/v1/completions"]
    completions = [one for one in asked if "allowed_token_ids" not in one]
    requested = [(one["model"], one["prompt"]) for one in completions]
    assert requested == [(model, probe["token_ids"]) for model in (BASE, BASE, ADAPTER) for probe in PROBES]
    assert all(one["prompt_logprobs"] == 0 and one["temperature"] == 0 for one in completions)
    chats = [one for _, path, one in replica.seen if path == "/tokenize"]
    assert [one["messages"] for one in chats] == [chat.messages for chat in CHATS]
    assert [one["add_generation_prompt"] for one in chats] == [chat.prompt for chat in CHATS]
    assert {one["model"] for one in chats} == {ADAPTER}
    assert [chat.name for chat, one in zip(CHATS, chats, strict=True) if "tools" in one] == ["tools"]


def test_stop_is_measured_on_the_adapter_token_by_token(serve):
    replica = serve()
    found = publish(replica)[replica_name(replica.url)]
    assert found["stop"] == {"tokens": list(ENDS.values()), "missed": []}
    held = [one for _, _, one in replica.seen if "allowed_token_ids" in one]
    assert [one["allowed_token_ids"] for one in held] == [[token] for token in ENDS]
    assert all((one["model"], one["prompt"], one["max_tokens"]) == (ADAPTER, TOKENS, 2) for one in held)


@pytest.mark.parametrize("finish_reason", ["length", "abort"])
def test_replica_that_continues_after_an_end_token_fails(serve, finish_reason):
    with pytest.raises(JobFailed) as failed:
        publish(serve(finish_reason=finish_reason))
    assert failed.value.code == Code.ADAPTER_STOP_MISMATCH
    assert "<|im_end|> (9)" in failed.value.message


def test_end_token_that_the_model_lacks_is_not_missed(serve):
    replica = serve(stop_refusal="allowed_token_ids contains out-of-vocab token id!")
    assert publish(replica)[replica_name(replica.url)]["passed"]


def test_refused_stop_request_is_the_replicas_fault(serve):
    with pytest.raises(JobFailed) as failed:
        publish(serve(stop_refusal="the prompt is too long"))
    assert failed.value.code == Code.SERVING_REFUSED


def test_base_is_requested_by_its_served_name(serve):
    replica = serve(limits=(200, {**LIMITS, "base": "tiny-twin", "twin_of": BASE}))
    found = publish(replica)[replica_name(replica.url)]
    assert found["base"]["twin_of"] == BASE
    assert {one["model"] for _, path, one in replica.seen if path == "/v1/completions"} == {"tiny-twin", ADAPTER}


def test_trained_and_reference_scores_are_compared(serve):
    """The fake replica returns -2.5 for every token of the adapter."""
    probes = [{**probe, "trained": [-2.4 for _ in probe["positions"]]} for probe in PROBES]
    calls = []

    def reference(served):
        calls.append(served)
        return [[-2.5 for _ in probe["positions"]] for probe in PROBES]

    one, other = serve(effect=0.5), serve(effect=0.5)
    found = publish(one, other, probes=probes, reference=reference)[replica_name(other.url)]["parity"]
    assert calls == [SERVED, SERVED]
    assert (found["engine_error_rms_nats"], found["engine_error_limit_nats"]) == (pytest.approx(0), 1e-4)
    assert (found["base_shift_rms_nats"], found["base_shift_limit_nats"]) == (pytest.approx(0.1), None)


def test_engine_error_over_its_limit_is_refused(serve):
    def reference(_):
        return [[-2.6 for _ in probe["positions"]] for probe in PROBES]

    with pytest.raises(JobFailed) as failed:
        publish(serve(effect=0.5), reference=reference)
    assert failed.value.code == Code.ADAPTER_PARITY_FAILED
    assert "1.00e-01 nats" in failed.value.message


@pytest.mark.parametrize("tokens", [(200, {"tokens": [1, 2, 4]}), (200, {"tokens": [1, 2]}), (400, {})])
def test_other_token_ids_are_refused(serve, tokens):
    replica = serve(tokens=tokens)
    with pytest.raises(JobFailed) as failed:
        publish(replica)
    assert failed.value.code == Code.ADAPTER_TEMPLATE_MISMATCH
    assert failed.value.details["certificates"][replica_name(replica.url)]["template"]["difference"]["chat"] == "plain"


@pytest.mark.parametrize("limits", [(200, {"base": BASE, "max_lora_rank": 16}), (404, {}), (200, [])])
def test_replica_of_another_release_is_named_as_the_cause(serve, limits):
    with pytest.raises(JobFailed) as failed:
        publish(serve(limits=limits))
    assert failed.value.code == Code.SERVING_REFUSED
    assert "same release" in failed.value.remedy


def test_unknown_dtype_is_judged_as_bfloat16(serve):
    replica = serve(limits=(200, {**LIMITS, "dtype": None}))
    assert publish(replica)[replica_name(replica.url)]["base"]["dtype"] == "bfloat16"


def test_every_replica_is_certified(serve):
    one, other = serve(), serve(effect=0.0)
    with pytest.raises(JobFailed) as failed:
        publish(one, other)
    assert failed.value.code == Code.ADAPTER_NO_EFFECT
    assert replica_name(other.url) in failed.value.message
    assert set(failed.value.details["certificates"]) == {replica_name(one.url), replica_name(other.url)}
    assert not failed.value.retryable


@pytest.mark.parametrize(
    ("effect", "noise", "floor", "passes"),
    [
        (0.002, 0.0, 1e-3, True),
        (0.001, 0.0, 1e-3, False),
        (0.0005, 0.0, 1e-3, False),
        (float("nan"), 0.0, 1e-3, False),
        (0.0, 0.0, 1e-3, False),
        (0.5, 0.2, 1e-3, False),
    ],
)
def test_effect_must_exceed_floor_and_noise(serve, effect, noise, floor, passes):
    replica = serve(effect=effect, noise=noise)
    if passes:
        assert publish(replica, floor=floor)
    else:
        with pytest.raises(JobFailed) as failed:
            publish(replica, floor=floor)
        assert failed.value.code == Code.ADAPTER_NO_EFFECT


def test_no_probes_fail_the_effect(serve):
    with pytest.raises(JobFailed) as failed:
        publish(serve(), probes=[])
    assert failed.value.code == Code.ADAPTER_NO_EFFECT


@pytest.mark.parametrize(
    ("code", "expected"),
    [("ADAPTER_RANK_TOO_LARGE", Code.ADAPTER_RANK_TOO_LARGE), ("SOMETHING_NEWER", Code.SERVING_REFUSED)],
)
def test_refusal_is_passed_on_with_its_code(serve, code, expected):
    error = {"code": code, "message": "Rank 17 is over 16.", "remedy": "Lower it.", "param": "rank"}
    replica = serve(check=(422, {"error": error}))
    with pytest.raises(ArtifactInvalid) as refused:
        publish(replica)
    assert (refused.value.code, refused.value.message) == (expected, "Rank 17 is over 16.")
    assert (refused.value.remedy, refused.value.param) == ("Lower it.", "rank")
    assert not refused.value.retryable
    assert [unquote(path) for _, path, _ in replica.seen] == ["/mens/limits", f"/mens/adapters/{ADAPTER}"]


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_serving_key_is_named_as_the_cause(serve, status):
    with pytest.raises(JobFailed) as failed:
        publish(serve(check=(status, {})))
    assert failed.value.code == Code.SERVING_REFUSED
    assert "MENS_SERVING_KEY" in failed.value.remedy


def test_refused_probe_fails_the_job(serve):
    with pytest.raises(JobFailed) as failed:
        publish(serve(completion_status=400))
    assert failed.value.code == Code.SERVING_REFUSED
    assert "too long" in failed.value.message


def test_unavailable_replica_is_waited_for(serve):
    replica = serve(away=3)
    checks = []
    assert publish(replica, raise_if_stopped=lambda: checks.append(1))[replica_name(replica.url)]["positions"] == 3
    assert len(checks) == 4


def test_replicas_of_other_bases_are_not_measured(serve):
    own, other = serve(), serve(limits=(200, LIMITS | {"base": "other", "base_digest": "e" * 64}))
    assert set(publish(other, own)) == {replica_name(own.url)}
    assert [path for _, path, _ in other.seen] == ["/mens/limits"]


def test_adapter_of_a_base_that_no_replica_serves_waits_for_one(serve):
    with pytest.raises(Unavailable) as failed:
        publish(serve(limits=(200, LIMITS | {"base_digest": None})))
    assert failed.value.code == Code.BASE_NOT_SERVED
    assert failed.value.retryable
    assert BASE in failed.value.message


def test_a_base_that_is_not_served_is_refused_with_the_command_that_serves_it(serve):
    with pytest.raises(Unavailable) as failed:
        publish(serve(limits=(200, LIMITS | {"base": "other", "base_digest": "e" * 64})))
    assert failed.value.message.startswith(f"{BASE} is not served here; other is. It is the base of ")
    assert f"`mens up --base other --base {BASE}`" in failed.value.remedy
    assert "`--no-publish`" in failed.value.remedy


@pytest.mark.parametrize("quant", ["none", "nf4"])
def test_adapter_of_the_unquantised_base_is_not_published_on_a_twin(serve, quant):
    twin = serve(limits=(200, LIMITS | {"base": "tiny-twin", "twin_of": BASE, "double_quant": True}))
    weights = TrainedWeights(quant)
    if quant == "nf4":
        assert publish(twin, weights=weights)
        return
    with pytest.raises(JobFailed) as failed:
        publish(twin, weights=weights)
    assert (failed.value.code, failed.value.retryable) == (Code.ADAPTER_PRECISION_MISMATCH, False)
    assert "tiny-twin" in failed.value.message and f"mens up --base {BASE} --weights original" in failed.value.remedy
    assert [path for _, path, _ in twin.seen] == ["/mens/limits"]
    original = serve()
    assert set(publish(twin, original, weights=weights)) == {replica_name(original.url)}


def test_replica_unavailable_beyond_the_timeout_fails(serve):
    with pytest.raises(Unavailable) as failed:
        publish(serve(away=10_000), timeout=0.05)
    assert failed.value.code == Code.SERVING_UNAVAILABLE
    assert failed.value.retryable


def test_unreachable_replica_fails(serve):
    unreachable = FakeReplica(url="http://127.0.0.1:9")
    with pytest.raises(Unavailable) as failed:
        publish(unreachable, timeout=0.0)
    assert failed.value.code == Code.SERVING_UNAVAILABLE


def test_stopped_job_ends_the_wait(serve):
    class Stop(Exception):
        pass

    replica = serve(away=10_000)

    def raise_if_stopped() -> None:
        if len(replica.seen) >= 2:
            raise Stop

    with pytest.raises(Stop):
        publish(replica, raise_if_stopped=raise_if_stopped, timeout=60)
    assert len(replica.seen) == 2


def test_no_replica_configured_fails():
    with pytest.raises(JobFailed) as failed:
        publish()
    assert failed.value.code == Code.SERVING_UNAVAILABLE
    assert not failed.value.retryable


# -- template arguments

ARGUMENTS = {"enable_thinking": False}


def test_probe_chats_are_sent_with_the_adapters_template_arguments(serve) -> None:
    """And one chat in the form that the gateway makes of a client's that names none."""
    replica = serve()
    [report] = publish(replica, template_arguments=ARGUMENTS).values()
    assert report["template"]["arguments"] == ARGUMENTS
    assert report["template"]["chats"] == [*(chat.name for chat in CHATS), "default"]
    chats = [body for _, path, body in replica.seen if path == "/tokenize"]
    assert [chat["chat_template_kwargs"] for chat in chats] == [ARGUMENTS] * len(CHATS)
    [default] = [body for _, path, body in replica.seen if path == "/v1/chat/completions"]
    assert default["chat_template_kwargs"] == ARGUMENTS
    assert (default["model"], default["max_tokens"], default["return_token_ids"]) == (ADAPTER, 1, True)


def test_without_arguments_nothing_is_added(serve) -> None:
    replica = serve()
    [report] = publish(replica).values()
    assert "arguments" not in report["template"]
    assert report["template"]["chats"] == [chat.name for chat in CHATS]
    assert not any(path == "/v1/chat/completions" or "chat_template_kwargs" in body for _, path, body in replica.seen)


def test_a_default_that_is_not_served_fails_the_certificate(serve) -> None:
    with pytest.raises(JobFailed, match="probe chat 'default' has token 9 at position 1") as failed:
        publish(serve(default_prompt=[1, 9, 3]), template_arguments=ARGUMENTS)
    assert failed.value.code == Code.ADAPTER_TEMPLATE_MISMATCH


@pytest.mark.parametrize(("window", "measured"), [(None, 3), (4096, 3), (300, 2)])
def test_a_replica_scores_the_probes_that_its_window_holds(serve, window, measured):
    deep = {"token_ids": [7] * 300, "positions": [280, 290], "stretched": True}
    replica = serve(limits=(200, LIMITS | {"context": window}))
    probes = ProbeSet(
        adapter_id=ADAPTER,
        base=TRAINED_ON,
        probes=[*PROBES, deep],
        encode_chats=encode,
        reference=lambda _: [[-2.5, -2.5], [-2.5], [-2.5, -2.5]],
        limits=CertificateLimits(1e-3),
    )
    found = certify([replica.url], KEY, probes, timeout_seconds=1, raise_if_stopped=lambda: None)
    (certificate,) = found.values()
    assert certificate["probes"] == measured
    assert [one["from"] for one in certificate["depth"]] == ([0, 256] if measured == 3 else [0])


# -- tool calls -------------------------------------------------------------------------------------------------------

CALL = '<tool_call>{"name": "look_up", …}</tool_call>'


def answer(*calls: tuple[str, str], finish_reason: str = "tool_calls") -> tuple[int, dict[str, Any]]:
    read = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return 200, {"choices": [{"message": {"tool_calls": read}, "finish_reason": finish_reason}]}


def encode_with_call():
    return replace(encode(), call=WrittenCall(CALL, {"enable_thinking": False}))


def test_tool_call_that_is_read_as_trained_passes(serve):
    replica = serve(call=answer(("look_up", json.dumps(CALLED_WITH))))
    found = publish(replica, encode_chats=encode_with_call, template_arguments={"effort": "low"})
    report = found[replica_name(replica.url)]
    assert (report["passed"], report["tools"]["as_trained"], report["warnings"]) == (True, True, [])
    [sent] = [body for _, _, body in replica.seen if "structured_outputs" in body]
    assert (sent["model"], sent["structured_outputs"], sent["tools"]) == (ADAPTER, {"choice": [CALL]}, TOOLS)
    assert sent["chat_template_kwargs"] == {"effort": "low", "enable_thinking": False}


@pytest.mark.parametrize(
    "call",
    [
        answer(finish_reason="stop"),
        answer(("look_up", '{"word": "bug"')),
        answer(("look_up", '{"word": "bug"}')),
        answer(("list_words", json.dumps(CALLED_WITH))),
        answer(("look_up", json.dumps(CALLED_WITH)), ("look_up", json.dumps(CALLED_WITH))),
    ],
    ids=["none", "no JSON", "an argument is lost", "another function", "twice"],
)
def test_tool_call_that_is_read_otherwise_fails(serve, call):
    replica = serve(call=call)
    with pytest.raises(JobFailed) as failed:
        publish(replica, encode_chats=encode_with_call)
    assert failed.value.code == Code.TOOL_CALLS_BROKEN
    assert failed.value.details["certificates"][replica_name(replica.url)]["failed"] == ["tools"]


@pytest.mark.parametrize(
    "call", [(400, {"error": {"message": "no parser"}}), answer(finish_reason="length")], ids=["refused", "cut"]
)
def test_replica_without_a_whole_answer_gives_a_warning(serve, call):
    replica = serve(call=call)
    report = publish(replica, encode_chats=encode_with_call)[replica_name(replica.url)]
    assert report["passed"]
    assert ["tool calls" in warning for warning in report["warnings"]] == [True]


def test_base_whose_template_writes_no_calls_has_no_such_certificate(serve):
    replica = serve()
    assert "tools" not in publish(replica)[replica_name(replica.url)]
