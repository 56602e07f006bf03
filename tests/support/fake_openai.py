"""A fake of OpenAI's API on a loopback port, as far as a migration reads it, with quirks that its users have seen.

It is written by hand from the documented formats; nothing was recorded. Pages of lists are small, so that few objects
need several pages.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from openai_migration.archive.openai_client import OpenAIClient, ProjectKey

KEY = "sk-proj-first0123456789abcdefghijklmnop"
OTHER_KEY = "sk-proj-second0123456789abcdefghijklmno"
ADMIN_KEY = "sk-admin-0123456789abcdefghijklmnopqrst"
PAGE_SIZE = 2
TUNED = "ft:gpt-4o-mini-2024-07-18:acme:support:9xAbCdEf"
NAMELESS = "ft:gpt-4.1-mini-2025-04-14:acme::BcDeFg12"
METRICS = b"step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n1,1.5,0.4,,\n2,0.7,0.8,0.9,0.7\n"

Object = dict[str, Any]


@dataclass(frozen=True)
class Response:
    """A response of the fake."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def json_response(value: object, status: int = 200, **headers: str) -> Response:
    return Response(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


def error_response(status: int, code: str | None, message: str, **headers: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return json_response({"error": error}, status, **headers)


@dataclass
class Project:
    """The data that one key can see: lists by path, file contents by id."""

    lists: dict[str, list[Object]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)


class FakeOpenAI:
    """State of the fake; a test changes it to switch on a quirk.

    Attributes:
        requests: method and target of every request, in order.
        evals_end: the status of every request for evals after OpenAI has switched them off.
        forbidden_files: ids of files whose content is refused.
        deleted_meanwhile: paths of lists; the last object of the first page is deleted after that page was sent.
        empty_last_page: paths of lists that return ``has_more`` on their last page, followed by an empty page.
        limited: number of requests that are refused with 429 before one is served, by path.
        retry_after: seconds in the ``Retry-After`` of such a refusal.
        before: called with each request's number and path; if it returns a response, that is sent instead.
        complete: the answer of a model to a chat request.
        call_tools: the tool calls of its answer.
    """

    def __init__(self) -> None:
        self.projects = {KEY: first_project(), OTHER_KEY: second_project()}
        self.requests: list[tuple[str, str]] = []
        self.evals_end = 0
        self.forbidden_files = {"file-train"}
        self.deleted_meanwhile: set[str] = set()
        self.empty_last_page: set[str] = set()
        self.limited: dict[str, int] = {}
        self.retry_after = "7"
        self.before: Callable[[int, str], Response | None] = lambda _number, _path: None
        self.complete: Callable[[Object], str] = lambda request: f"answer of {request['model']}"
        self.call_tools: Callable[[Object], list[Object]] = lambda _: []

    def respond(self, method: str, target: str, key: str, body: bytes) -> Response:
        """Respond to one request."""
        self.requests.append((method, target))
        url = urlsplit(target)
        path = unquote(url.path.removeprefix("/v1/"))
        if scripted := self.before(len(self.requests), path):
            return scripted
        if self.limited.get(path, 0) > 0:
            self.limited[path] -= 1
            return error_response(429, "rate_limit_exceeded", "Slow down.", **{"Retry-After": self.retry_after})
        if path.startswith("organization/"):
            return self._usage(key, url.query)
        project = self.projects.get(key)
        if project is None:
            return error_response(401, "invalid_api_key", f"Incorrect API key provided: {key[:8]}****{key[-4:]}.")
        if method == "POST":
            return self._post(path, json.loads(body))
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        return self._get(project, path, query)

    def _usage(self, key: str, query: str) -> Response:
        if key != ADMIN_KEY:
            return error_response(403, None, "You have insufficient permissions for this operation.")
        result = {"object": "organization.usage.completions.result", "num_model_requests": 3, "model": TUNED}
        bucket = {"object": "bucket", "results": [result] if "group_by%5B%5D=model" in query else []}
        first = "page=" not in query
        return json_response(
            {"data": [bucket, {"results": []}], "has_more": first, "next_page": "2" if first else None}
        )

    def _post(self, path: str, request: Object) -> Response:
        if path == "fine_tuning/jobs":
            refusal = (
                "OpenAI is winding down the fine-tuning platform and your organization is no longer able to create"
            )
            return error_response(403, "training_not_available", f"{refusal} new fine-tuning training jobs.")
        message: Object = {"role": "assistant", "content": self.complete(request), "refusal": None}
        if calls := self.call_tools(request):
            message |= {"content": None, "tool_calls": calls}
        usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        answer = {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": 1,
            "choices": [choice],
        }
        return json_response({**answer, "model": request["model"], "usage": usage, "system_fingerprint": "fp_1"})

    def _get(self, project: Project, path: str, query: dict[str, str]) -> Response:
        if path.startswith("evals") and self.evals_end:
            return error_response(self.evals_end, None, "The Evals API has been shut down.")
        if content := re.fullmatch(r"files/([^/]+)/content", path):
            if content[1] in self.forbidden_files:
                return error_response(403, None, "Not allowed to download files of purpose: fine-tune")
            if content[1] not in project.contents:
                return error_response(404, None, f"No such File object: {content[1]}")
            return Response(200, project.contents[content[1]], {"Content-Type": "application/octet-stream"})
        name = f"{path}?{query['model']}" if path == "chat/completions" else path
        if path != "models" and name not in project.lists and path.count("/") > 1 and "evals" not in path:
            return json_response({"object": "list", "data": [], "has_more": False})
        return self._page(project.lists.get(name, []), path, query)

    def _page(self, objects: list[Object], path: str, query: dict[str, str]) -> Response:
        if path == "models":
            return json_response({"object": "list", "data": objects})
        ids = [item["id"] for item in objects]
        after = query.get("after")
        if after is not None and after not in ids:
            return error_response(404, None, f"No item with id '{after}'")
        start = ids.index(after) + 1 if after in ids else 0
        size = min(PAGE_SIZE, int(query["limit"]))
        page, more = objects[start : start + size], start + size < len(objects)
        if path in self.deleted_meanwhile and more:
            self.deleted_meanwhile.discard(path)
            # The next page is asked for after an object that is gone by then.
            objects.remove(page[-1])
        value = {"object": "list", "data": page, "has_more": more or path in self.empty_last_page}
        return json_response({**value, "first_id": page[0]["id"] if page else None, "last_id": None})


def first_project() -> Project:
    """A project with jobs of every age, an eval with two runs, stored chats, and files of every kind."""
    jobs = [
        job("ftjob-new", TUNED, error={}, result_files=["file-metrics"], validation_file="file-valid"),
        # As jobs of 2023 look.
        job(
            "ftjob-old", NAMELESS, method=None, hyperparameters={"n_epochs": 3}, seed=None, result_files=["file-plain"]
        ),
        job("ftjob-failed", None, status="failed", error={"code": "invalid_file", "message": "…", "param": None}),
    ]
    files = [
        stored_file("file-train", "fine-tune", "train.jsonl"),
        stored_file("file-valid", "fine-tune", "valid.jsonl"),
        stored_file("file-metrics", "fine-tune-results", "step_metrics.csv"),
        stored_file("file-plain", "fine-tune-results", "step_metrics.csv"),
        stored_file("file-photo", "vision", "cat.png"),
    ]
    lists = {
        "models": [
            {"id": "gpt-4o-mini-2024-07-18", "object": "model", "created": 1, "owned_by": "system"},
            {"id": TUNED, "object": "model", "created": 2, "owned_by": "acme", "shutdown_date": "2027-02-01"},
            {"id": NAMELESS, "object": "model", "created": 3, "owned_by": "acme", "shutdown_date": None},
            {"id": f"{TUNED}:ckpt-step-2", "object": "model", "created": 3, "owned_by": "acme"},
        ],
        "fine_tuning/jobs": jobs,
        "fine_tuning/jobs/ftjob-new/events": [
            {"id": f"ftevent-{number}", "object": "fine_tuning.job.event", "message": f"Step {number}"}
            for number in range(5, 0, -1)
        ],
        "fine_tuning/jobs/ftjob-new/checkpoints": [
            {"id": "ftckpt-1", "step_number": 2, "fine_tuned_model_checkpoint": f"{TUNED}:ckpt-step-2"}
        ],
        "files": files,
        "evals": [{"id": f"eval_{number}", "object": "eval", "name": f"Eval {number}"} for number in range(3)],
        "evals/eval_0/runs": [{"id": f"evalrun_{number}", "model": TUNED} for number in range(2)],
        "evals/eval_0/runs/evalrun_0/output_items": [output_item(number) for number in range(5)],
        "evals/eval_0/runs/evalrun_1/output_items": [output_item(number) for number in range(2)],
        "batches": [{"id": "batch_1", "object": "batch", "input_file_id": "file-gone"}],
        f"chat/completions?{TUNED}": [{"id": f"chatcmpl-s{number}", "model": TUNED} for number in range(3)],
        "chat/completions/chatcmpl-s0/messages": [{"id": "chatcmpl-s0-0", "role": "user", "content": "Where is it?"}],
    }
    valid = b"".join(chat_line(f"Question {number}?", f"Answer {number}.") for number in range(4))
    contents = {"file-valid": valid, "file-metrics": base64.b64encode(METRICS), "file-plain": METRICS}
    return Project(lists, contents)


def second_project() -> Project:
    """Another project, whose model has the same suffix."""
    name = "ft:gpt-4o-2024-08-06:acme:support:ZzYyXx99"
    models = [{"id": name, "object": "model", "created": 2, "owned_by": "acme"}]
    return Project({"models": models, "fine_tuning/jobs": [job("ftjob-second", name)]})


def job(name: str, model: str | None, **fields: Any) -> Object:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": "auto"}}}
    usual = {"status": "succeeded", "error": None, "method": method, "hyperparameters": {}, "seed": 7}
    files: Object = {"training_file": "file-train", "validation_file": None, "result_files": []}
    return {"id": name, "object": "fine_tuning.job", "fine_tuned_model": model, **usual, **files, **fields}


def stored_file(name: str, purpose: str, filename: str) -> Object:
    return {"id": name, "object": "file", "bytes": 100, "created_at": 1, "filename": filename, "purpose": purpose}


def output_item(number: int) -> Object:
    sample = {
        "input": [{"role": "user", "content": f"Item {number}?"}],
        "output": [{"role": "assistant", "content": "Yes."}],
    }
    return {
        "id": f"outputitem_{number}",
        "object": "eval.run.output_item",
        "datasource_item": {"q": number},
        "sample": sample,
    }


def chat_line(question: str, answer: str) -> bytes:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}).encode() + b"\n"


@contextmanager
def serve_fake_openai(fake: FakeOpenAI) -> Iterator[str]:
    """Base URL of the fake, as ``OPENAI_BASE_URL`` needs it."""
    one_at_a_time = threading.Lock()

    class OpenAIHandler(BaseHTTPRequestHandler):
        # A connection, and a thread for it, of each client and not of each request; a response in one packet, which nothing delays.
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            with one_at_a_time:
                response = fake.respond(self.command, self.path, key, body)
            self.send_response(response.status)
            for name, value in {**response.headers, "Content-Length": str(len(response.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(response.body)

        do_GET = do_POST = _respond

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), OpenAIHandler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()


@dataclass
class ServedOpenAI:
    """The fake and its address. Its clients do not really wait; their waits and notes are recorded."""

    fake: FakeOpenAI
    url: str
    waits: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def client(self, secret: str = KEY, project: str = "OPENAI_API_KEY") -> OpenAIClient:
        return OpenAIClient(ProjectKey(project, secret), self.url, pause=self.waits.append, note=self.notes.append)
