"""Sends the recorded prompts to the new model, and keeps its answers as they arrive; answered prompts are not sent
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from cli.client.remedies import our_code
from openai_migration.archive.folder import make_private, safe_name
from openai_migration.gate.recorded import RecordedPrompt
from openai_migration.receipts import GATE
from shared.errors import ArtifactInvalid, Code, Conflict, Forbidden, NotFound, Unauthenticated, Unavailable
from shared.hashing import digest_json
from shared.http_retry import Retries, describe_outcome, is_temporary

ADAPTER_HEADER = "x-mens-adapter"
RECORDED_BOUND = "max_completion_tokens"
ATTEMPTS = 6


class NewAnswer(msgspec.Struct, frozen=True):
    """One line of a model's answers: the outcome of a request.

    Attributes:
        request: digest of the request body.
        adapter: id of the adapter that answered; empty for a base or a refusal.
        code: code of a refusal; empty for an answer.
        response: the response body, unchanged.
        unbounded: whether the recorded token limit was left out, because the model's context is shorter.
    """

    request: str
    status: int
    adapter: str
    code: str
    response: dict[str, Any]
    unbounded: bool = False

    @property
    def reason(self) -> str:
        """The installation's own reason for a refusal."""
        error = self.response.get("error")
        return str((error.get("message") if isinstance(error, dict) else "") or f"status {self.status}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """The new model.

    Attributes:
        name: the given name.
        served: the name in requests: for an alias, the id of its adapter.
    """

    name: str
    served: str


def resolve(client: httpx.Client, name: str) -> Candidate:
    """Return the model that a name currently refers to, so that all answers come from one model.

    Raises:
        Conflict: an alias is split between adapters.
        Unauthenticated, Forbidden: the key is not accepted.
        Unavailable: the installation does not respond.
    """
    response = _send(client, "GET", f"/v1/aliases/{quote(name, safe='')}", None)
    if response.status_code != httpx.codes.OK:
        _check_access(response.status_code, {})
        return Candidate(name, name)
    targets = [str(target["adapter"]) for target in response.json()["targets"]]
    if len(targets) > 1:
        message = f"The alias {name!r} is split between {', '.join(targets)}."
        raise Conflict(Code.REQUEST_INVALID, message, remedy="Name one of them as the candidate.")
    return Candidate(name, targets[0])


def body_for(prompt: RecordedPrompt, candidate: Candidate) -> dict[str, Any]:
    """Return the recorded request, addressed to the new model."""
    return {**prompt.request, **prompt.sampling, "model": candidate.served}


def answers_file(model: str) -> str:
    """Return the path of the answers of a tuned model's successor."""
    return f"{GATE}/{safe_name(model)}.answers.jsonl"


def read_answers(folder: Path, model: str) -> dict[str, NewAnswer]:
    """Read the answers so far, by the digest of their request; a line that was cut off by a kill is ignored.

    Raises:
        ArtifactInvalid: the file cannot be read.
    """
    return read_lines(folder / answers_file(model))


def read_lines(path: Path) -> dict[str, NewAnswer]:
    """Read the answers of a file, by the digest of their request; empty without a file.

    Raises:
        ArtifactInvalid: the file cannot be read.
    """
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.is_file() else []
    try:
        return {answer.request: answer for answer in map(msgspec.json.Decoder(NewAnswer).decode, lines)}
    except msgspec.DecodeError as error:
        message = f"{path} cannot be read: {error}."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy="Delete it, and run `gate` again.") from None


def pending(folder: Path, model: str, prompts: Iterable[RecordedPrompt], candidate: Candidate) -> list[dict[str, Any]]:
    """Return the requests that have no answer yet. A refusal is sent again: the installation may have changed."""
    stored = read_answers(folder, model)
    bodies = [body_for(prompt, candidate) for prompt in prompts]
    return [body for body in bodies if (answer := stored.get(digest_json(body))) is None or answer.code]


def ask(
    client: httpx.Client,
    folder: Path,
    file: str,
    bodies: list[dict[str, Any]],
    *,
    concurrency: int = 4,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Send requests, several at once, and append each answer as it arrives.

    Args:
        file: path of the answers in the archive.

    Raises:
        Unavailable: the installation does not respond; answers until then are kept.
        NotFound, Unauthenticated, Forbidden: the model does not exist, or the key may not request it.
    """
    path = folder / file
    make_private(path.parent, folder)
    path.touch(mode=0o600)
    with path.open("r+b") as lines, ThreadPoolExecutor(concurrency) as pool:
        # The next line must not continue an incomplete one.
        lines.seek(lines.read().rfind(b"\n") + 1)
        lines.truncate()
        futures = [pool.submit(_ask, client, body) for body in bodies]
        try:
            for future in as_completed(futures):
                lines.write(msgspec.json.encode(future.result()) + b"\n")
                lines.flush()
                advance()
        finally:
            pool.shutdown(cancel_futures=True)


def _ask(client: httpx.Client, body: dict[str, Any]) -> NewAnswer:
    response = _send(client, "POST", "/v1/chat/completions", body)
    content = _object(response)
    unbounded = RECORDED_BOUND in body and _is_bound_refused(response.status_code, content)
    if unbounded:
        # The bound is that of `record`, not of the program: a base with a shorter context answers within its own.
        without = {name: value for name, value in body.items() if name != RECORDED_BOUND}
        response = _send(client, "POST", "/v1/chat/completions", without)
        content = _object(response)
    _check_access(response.status_code, content)
    code = "" if response.is_success and content.get("choices") else _code_of(response.status_code, content)
    adapter = response.headers.get(ADAPTER_HEADER, "")
    return NewAnswer(digest_json(body), response.status_code, adapter, code, content, unbounded)


def _is_bound_refused(status: int, content: dict[str, Any]) -> bool:
    """Return whether a request may have been refused because of its token limit, which exceeds the context either alone
    or together with the prompt.
    """
    if status != httpx.codes.BAD_REQUEST:
        return False
    error = content.get("error")
    message = str(error.get("message")) if isinstance(error, dict) else ""
    return _code_of(status, content) == Code.CONTEXT_LENGTH_EXCEEDED or RECORDED_BOUND in message


def _object(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response; an empty one if it has none."""
    try:
        value = response.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _check_access(status: int, content: dict[str, Any]) -> None:
    """Raise errors that do not depend on the prompt: every other prompt would be refused in the same way."""
    error = content.get("error") if isinstance(content.get("error"), dict) else None
    message, error_code = str((error or {}).get("message") or f"status {status}"), our_code(error or {})
    if status == httpx.codes.UNAUTHORIZED:
        raise Unauthenticated(Code.KEY_INVALID, message, remedy="Set MENS_API_KEY to a key of the installation.")
    if status == httpx.codes.FORBIDDEN:
        raise Forbidden(Code.ROLE_INSUFFICIENT, message, remedy="Use a key that may request the model.")
    if error_code == Code.MODEL_NOT_FOUND:
        raise NotFound(Code.MODEL_NOT_FOUND, message, remedy="List available models with `mens models`.")


def _code_of(status: int, content: dict[str, Any]) -> str:
    error = content.get("error")
    return str(our_code(error) or status) if isinstance(error, dict) else f"HTTP_{status}"


def _send(client: httpx.Client, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
    outcome = Retries(ATTEMPTS).send(partial(client.request, method, path, json=body))
    if isinstance(outcome, httpx.Response) and not is_temporary(outcome):
        return outcome
    failure, remedy = describe_outcome(outcome), "Run the command again: received answers are kept."
    raise Unavailable(
        Code.SERVING_UNAVAILABLE, f"{client.base_url} answered with {failure}, {ATTEMPTS} times.", remedy=remedy
    )
