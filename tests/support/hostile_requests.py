"""Requests of strangers and careless tenants: to the API, and through it to models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.support.builders import BASE

JSON = "Content-Type: application/json"
FORM = "Content-Type: multipart/form-data; boundary=x"
READ_TO_THE_END = "Connection: close"
"""Mark of a request whose whole response is read."""


@dataclass(frozen=True)
class Tenant:
    """A tenant's key and one of its jobs."""

    secret: str
    job: str

    def request(self, method: str, path: str, body: bytes = b"", *lines: str, length: int | None = None) -> bytes:
        """A request with the key; ``length`` is the declared length if it differs from the body's."""
        return http(method, path, body, f"Authorization: Bearer {self.secret}", *lines, length=length)


def http(method: str, path: str, body: bytes = b"", *lines: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {size}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


def upload(filename: bytes, content: bytes) -> bytes:
    purpose = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
    disposition = b'--x\r\nContent-Disposition: form-data; name="file"; filename="' + filename + b'"\r\n\r\n'
    return purpose + disposition + content + b"\r\n--x--\r\n"


def of_nobody() -> list[bytes]:
    """Requests without a valid key."""
    return [
        http("POST", "/v1/jobs", b"[" + b"[]," * 700_000, JSON),
        http("POST", "/v1/jobs", b"[[", JSON, length=48_000_000),
        http("POST", "/v1/files", b"x" * 100_000, FORM),
        http("GET", "/v1/models", b"", "Authorization: Bearer mens-guess"),
        http("GET", "/v1/models", b"", *["X: " + "a" * 1000] * 500),
        http("GET", "/" + "a" * 200_000),
        b"GET /v1/models HTTP/1.1\r\nX: ",
        b"\x16\x03\x01\x00\xff garbage\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        http("GET", "/v1/../../etc/passwd"),
        http("GET", "/health") * 50_000,
        http("POST", "/v1/jobs", b"", JSON, length=1_000_000),
        http("GET", "/v1/models", b"", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        b"",
    ]


def of_tenant(tenant: Tenant) -> list[bytes]:
    """Requests with a valid key, each with a different fault."""
    send = tenant.request
    huge = json.dumps({"model": "none", "messages": [], "options": {"top_k": 2**64}}).encode()
    filters = "&".join(f"metadata%5B{number}%5D=x" for number in range(1200))
    return [
        send("POST", "/v1/jobs", b"{" * 50_000, JSON),
        send("POST", "/v1/plans", b'{"contract":' * 5000 + b"1" + b"}" * 5000, JSON),
        send("POST", "/v1/plans", b"[" + b"[]," * 300_000 + b"[]]", JSON),
        send("POST", "/v1/keys", b" " * 2_000_000, JSON),
        send("POST", "/v1/keys", b"{", JSON, length=1000),
        send("POST", "/v1/chat/completions", b'{"model": 1, "messages": "x"}', JSON),
        send("POST", "/v1/chat/completions", b"[" * 100_000, JSON),
        send("POST", "/api/chat", huge, JSON),
        send("POST", "/v1/files", upload(b"\xff\xfe", b"{}"), FORM),
        send("POST", "/v1/files", upload(b"a", b""), FORM),
        send("POST", "/v1/files", b"--x\r\n", FORM, length=100_000),
        send("POST", "/v1/uploads", b'{"bytes": 1e400, "filename": "\\u0000", "mime_type": "", "purpose": []}', JSON),
        send("POST", "/v1/uploads", b'{"bytes": 9' + b"9" * 4000 + b"}", JSON),
        send("POST", "/v1/uploads/upload-1/parts", b"--x\r\n" * 10_000, FORM),
        send("POST", "/v1/uploads/%00/parts", b"", FORM, length=900_000_000),
        send("POST", "/v1/uploads/upload-1/complete", b'{"part_ids": ' + b"[" * 50_000, JSON),
        send("POST", "/v1/files", upload(b"a", b"{}"), FORM, "Idempotency-Key: " + "k" * 5000),
        send("POST", "/v1/files", upload(b"a", b"{}"), FORM, "Idempotency-Key: " + "\u00ff" * 9),
        send("GET", f"/v1/fine_tuning/jobs?{filters}"),
        send("GET", "/v1/usage?from=0&to=99999999999"),
        send("GET", "/v1/files/%00%ff"),
        send("GET", f"/v1/jobs/{tenant.job}/events", b"", "Last-Event-ID: x"),
        send("DELETE", "/v1/aliases/a", b"", "If-Match: " + "1" * 5000),
        send("GET", "/v1/models/" + "%2F" * 500),
        send("PATCH", "/v1/models", b"{}", JSON),
        send("OPTIONS", "/v1/jobs"),
        send("GET", "/v1/jobs?limit=99999999999999999999"),
        send("GET", "/v1/jobs", b"", "X-Mens-Tenant: shared"),
        *(send("POST", "/v1/chat/completions", bomb, JSON) for bomb in grammar_bombs()),
    ]


def grammar_bombs() -> list[bytes]:
    """Requests whose grammars would keep an engine busy for minutes."""
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    wanted: list[dict[str, Any]] = [
        {"structured_outputs": {"grammar": "root ::= " + "(a | b) " * 90_000}},
        {"structured_outputs": {"regex": "(a|b)*" * 90_000}},
        {"structured_outputs": {"choice": ["word"] * 90_000}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": deep}}},
    ]
    request = {"model": BASE, "messages": [{"role": "user", "content": "hello"}]}
    return [json.dumps(request | fields).encode() for fields in wanted]


def of_user(tenant: Tenant, model: str) -> list[bytes]:
    """Small requests to a model with a valid key, which the API or the replica has to handle without a failure."""
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    chats = [chat | fields for fields in (*costly_outputs(), *malformed_chats(), *large_answers())]
    bodies = [("/v1/chat/completions", fields) for fields in chats]
    bodies += [("/v1/completions", {"max_tokens": 8} | fields) for fields in odd_completions()]
    bodies += odd_requests()
    whole, cut = [], []
    for path, fields in bodies:
        body = json.dumps({"model": model} | fields).encode()
        # Of what keeps the connection open the sender leaves with the first line of the answer.
        whole.append(tenant.request("POST", path, body, JSON, READ_TO_THE_END))
        cut.append(tenant.request("POST", path, body, JSON))
    half = tenant.request("POST", "/v1/chat/completions", b'{"model": ', JSON, length=500)
    return [*whole, *cut, half]


def large_answers() -> list[dict[str, Any]]:
    """Fields of valid chats, including streams, that keep the engine busy."""
    return [
        {"max_tokens": 48},
        {"max_tokens": 48, "stream": True},
        {"stream": True, "n": 4, "max_tokens": 32, "temperature": 2},
        {"max_tokens": 16, "logprobs": True, "top_logprobs": 20},
    ]


def odd_completions() -> list[dict[str, Any]]:
    """Completions with useless prompts or settings, and those that once crashed vLLM's engine."""
    prompts: list[Any] = ["", [], [[]], [-1], [2**40], [["a"], 1], "a" * 9000, {"a": 1}]
    return [
        *({"prompt": prompt} for prompt in prompts),
        {"prompt": ["a", "b"], "echo": True, "logprobs": 5},
        {"prompt": "a", "prompt_logprobs": 0, "stream": True},
        {"prompt": "a", "stop": [""]},
        {"prompt": "a", "logit_bias": {"-1": 1e9}},
        {"prompt": "a", "best_of": 10**6},
    ]


def odd_requests() -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies of the other routes to models."""
    messages = [{"role": "user", "content": "hello", "images": ["x"]}]
    return [
        ("/v1/responses", {"input": [{"type": "message"}]}),
        ("/v1/responses", {"input": "hello", "text": {"format": {"type": "json_schema"}}, "stream": True}),
        ("/v1/embeddings", {"input": "hello"}),
        ("/v1/tokenize", {"prompt": "a" * 9000}),
        ("/api/chat", {"messages": messages, "format": {"$ref": "#"}}),
        ("/api/generate", {"prompt": "hello", "options": {"num_predict": 2**64, "stop": 1}}),
    ]


def costly_outputs() -> list[dict[str, Any]]:
    """Short grammars that are expensive to compile, or that cost more with every token."""
    many = {"type": "object", "properties": {f"p{number}": {} for number in range(800)}}
    ambiguous = 'root ::= s\ns ::= s s s s s | s s s s | s s s | s s | "a"'
    outputs: list[dict[str, Any]] = [
        *({"regex": regex} for regex in ("((a{1,60}){1,60}){1,60}", "(a|a)*b", "(a+)+$", "[^x]{9000}", "(?=a)a", "(")),
        *({"grammar": grammar} for grammar in (ambiguous, "root ::= root", 'root ::= "a"{1,90000}', "root ::=")),
        {"choice": ["a" * 50] * 300},
    ]
    schemas: list[dict[str, Any]] = [
        many,
        {"type": "array", "items": {"type": "string", "pattern": "^(a|b)*$"}, "minItems": 9000},
        {"type": "string", "minLength": 50_000, "maxLength": 90_000},
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "object", "additionalProperties": {"$ref": "#"}}]},
        {"type": "string", "pattern": "^[3-8]{500}$"},
    ]
    outputs += [{"json": schema} for schema in schemas]
    return [{"structured_outputs": output, "max_tokens": 64} for output in outputs]


def malformed_chats() -> list[dict[str, Any]]:
    """Fields of a chat with a fault in a nested object."""
    messages: list[Any] = [
        [],
        [{}],
        ["x"],
        [{"role": "x", "content": "a"}],
        [{"role": "user", "content": [{"type": "x"}]}],
    ]
    messages += [[{"role": "tool", "content": "a"}], [{"role": "assistant", "tool_calls": [{"function": {}}]}]]
    messages += [[{"role": "user", "content": "a"}] * 400, [{"role": "user", "content": {"a": 1}}]]
    named = {"type": "function", "function": {"name": "add"}}
    fields: list[dict[str, Any]] = [
        {"tools": [{}], "tool_choice": named},
        {"tools": [named], "tool_choice": "required"},
        {"structured_outputs": ""},
        {"vllm_xargs": {"kv_transfer_params": "x"}},
        {"stream_options": {"include_usage": 1}, "stream": "yes"},
        {"max_tokens": 10**9, "min_tokens": 10**9},
        {"n": 10**6, "top_logprobs": 10**6},
        {"logit_bias": {str(number): 100 for number in range(300)}},
        {"stop": ["a"] * 900, "seed": 2**70},
    ]
    return [*({"messages": each} for each in messages), *fields]
