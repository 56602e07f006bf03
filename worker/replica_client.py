"""The worker's HTTP client of one serving replica: capabilities, adapter checks, scores, token ids, unloading. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict

from shared.errors import ArtifactInvalid, Code, JobFailed, Unavailable
from shared.http_retry import keyed_client
from shared.model_card.evaluation_rows import EvaluationRow, RowScore, WrittenAnswer
from shared.replicas import ReplicaCapabilities, UnloadProgress, replica_name
from shared.tokenization.request_arguments import with_template_arguments

CONNECT_SECONDS = 5.0
CHAT = "/v1/chat/completions"
SAME_RELEASE = "Run the same release of Mens on every tier."

_Shape = TypeVar("_Shape", bound=BaseModel)


class _PromptLogprobs(BaseModel):
    """The fields of a completion's response that are read: one entry per prompt token, by id; none for the first."""

    model_config = ConfigDict(frozen=True)

    class Choice(BaseModel):
        class Entry(BaseModel):
            logprob: float
            rank: int | None = None

        index: int = 0
        prompt_logprobs: list[dict[int, Entry] | None]

    choices: list[Choice]


class _Ending(BaseModel):
    """The fields of a completion's response that are read to see whether it stopped."""

    model_config = ConfigDict(frozen=True)

    class Ended(BaseModel):
        finish_reason: str | None

    class Counted(BaseModel):
        completion_tokens: int

    choices: list[Ended]
    usage: Counted


class _Completions(BaseModel):
    """The fields of a completion's response that are read for its answers."""

    model_config = ConfigDict(frozen=True)

    class RenderedCompletion(BaseModel):
        index: int
        text: str
        finish_reason: str | None

    choices: list[RenderedCompletion]


class _Tokens(BaseModel):
    """The field of a ``/tokenize`` response that is read."""

    tokens: list[int]


class _PromptIds(BaseModel):
    """The field of a chat's response that is read, with ``return_token_ids``."""

    prompt_token_ids: list[int]


class _Calls(BaseModel):
    """The fields of a chat's response that are read for its tool calls."""

    model_config = ConfigDict(frozen=True)

    class CallingChoice(BaseModel):
        class CallingTurn(BaseModel):
            class ReadCall(BaseModel):
                class ReadFunction(BaseModel):
                    name: str
                    arguments: str

                function: ReadFunction

            tool_calls: list[ReadCall] | None = None

        message: CallingTurn
        finish_reason: str | None

    choices: list[CallingChoice]


@dataclass(frozen=True, slots=True)
class ReadCalls:
    """Tool calls that a replica read from an answer.

    Attributes:
        calls: name and arguments of each call.
        reason: why it gave no complete answer; empty if it did.
    """

    calls: list[tuple[str, str]]
    reason: str = ""


class BlockingReplicaClient:
    """One serving replica.

    Args:
        url: its base URL. Callers and records use its name instead (`replica_name`).
        key: the serving key; empty if none is required.
        timeout_seconds: timeout of one request.
    """

    def __init__(self, url: str, key: str, timeout_seconds: float) -> None:
        self.url, self.name = url, replica_name(url)
        self._client = keyed_client(url, key, read_seconds=timeout_seconds, connect_seconds=CONNECT_SECONDS)

    def __enter__(self) -> BlockingReplicaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def capabilities(self) -> ReplicaCapabilities:
        """Return the models that the replica serves and its capabilities.

        Raises:
            JobFailed: ``SERVING_REFUSED``.
            Unavailable: no response.
        """
        return self._read(ReplicaCapabilities, self._send("GET", "/mens/limits"))

    def check(self, adapter_id: str) -> None:
        """Make the replica fetch and verify an adapter.

        Raises:
            ArtifactInvalid: refused, with the replica's own code.
            JobFailed: ``SERVING_REFUSED``: the replica gave no reason.
            Unavailable: no response.
        """
        response = self._send("GET", _adapter_path(adapter_id))
        if response.status_code != 200:
            raise self._refusal(response)

    def unload(self, adapter_id: str, drain_seconds: float) -> UnloadProgress:
        """Make the replica drain and unload an adapter; the caller repeats the call until it is unloaded.

        Args:
            adapter_id: id of an adapter that the storage no longer has.
            drain_seconds: how long requests in flight may continue.

        Raises:
            ArtifactInvalid, JobFailed, Unavailable: the errors of :meth:`check`.
        """
        # A 500 is about this adapter alone: it must not make the caller give up on the replica's other adapters.
        response = self._request("DELETE", _adapter_path(adapter_id), params={"drain_seconds": drain_seconds})
        if response.status_code not in (200, 202):
            raise self._refusal(response)
        return self._read(UnloadProgress, response)

    def scores(self, model: str, probe: dict[str, Any]) -> list[float]:
        """Return the log-probability (nats) of a probe's tokens at its positions, each given all tokens before it.

        Raises:
            JobFailed: ``SERVING_REFUSED``.
            Unavailable: no response.
        """
        row = EvaluationRow(token_ids=tuple(probe["token_ids"]), positions=tuple(probe["positions"]))
        return [entry.logprob for entry in self._entries(model, [row])[0]]

    def score_rows(self, model: str, rows: Sequence[EvaluationRow]) -> list[RowScore]:
        """Return loss (nats) and hits of the arg-max over each row's supervised tokens, in one request.

        Raises:
            JobFailed: ``SERVING_REFUSED``.
            Unavailable: no response.
        """
        return [
            RowScore(
                loss=-math.fsum(entry.logprob for entry in entries),
                correct=sum(entry.rank == 1 for entry in entries),
                weight=len(entries),
                targets=len(entries),
            )
            for entries in self._entries(model, rows)
        ]

    def answers(self, model: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[WrittenAnswer]:
        """Return greedy answers to prompts of token ids, as the replica ends them.

        Raises:
            JobFailed: ``SERVING_REFUSED``.
            Unavailable: no response.
        """
        body = {"prompt": _as_prompt(prompts), "max_tokens": max_tokens}
        # By their index, because the order of choices is not promised.
        choices = sorted(
            self._read(_Completions, self._complete(model, body)).choices, key=lambda completion: completion.index
        )
        if len(choices) != len(prompts):
            raise self._failed(f"answered {len(choices)} of {len(prompts)} prompts of {model}", SAME_RELEASE)
        return [WrittenAnswer(choice.text.strip(), choice.finish_reason == "stop") for choice in choices]

    def _entries(self, model: str, rows: Sequence[EvaluationRow]) -> list[list[_PromptLogprobs.Choice.Entry]]:
        """Return the replica's log-probability entries for the supervised tokens of each row."""
        # vLLM has no request without an answer; 0 requests the score of the token itself and no alternatives.
        body = {"prompt": _as_prompt([row.token_ids for row in rows]), "max_tokens": 1, "prompt_logprobs": 0}
        choices = sorted(
            self._read(_PromptLogprobs, self._complete(model, body)).choices, key=lambda completion: completion.index
        )
        try:
            return [
                [(choice.prompt_logprobs[at] or {})[row.token_ids[at]] for at in row.positions]
                for row, choice in zip(rows, choices, strict=True)
            ]
        except (IndexError, KeyError, ValueError):
            fault = f"returned no log-probability for some tokens of a probe of {model}"
            raise self._failed(fault, SAME_RELEASE) from None

    def _complete(self, model: str, body: dict[str, Any]) -> httpx.Response:
        response = self._send("POST", "/v1/completions", json={"model": model, "temperature": 0, **body})
        if response.status_code != 200:
            raise self._failed(
                f"refused a probe of {model} with {response.status_code}: {response.text[:300]}",
                "Read the serving replica's log; its limits (rank, length) may be too small for this adapter.",
            )
        return response

    def token_ids(
        self,
        model: str,
        messages: list[dict[str, Any]],
        *,
        prompt: bool,
        tools: list[dict[str, Any]] | None = None,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[int] | None:
        """Return a chat's token ids according to the replica's template and tokenizer; None if the replica refuses the
        chat.

        Args:
            model: an adapter id, or the base's name.
            messages: the chat.
            prompt: whether the beginning of the assistant's next turn is added.
            tools: tools that the chat declares.
            arguments: template arguments.

        Raises:
            JobFailed: ``SERVING_REFUSED``.
            Unavailable: no response.
        """
        body: dict[str, Any] = {"model": model, "messages": messages, "add_generation_prompt": prompt}
        body |= {"tools": tools} if tools else {}
        body |= {"chat_template_kwargs": dict(arguments)} if arguments else {}
        response = self._send("POST", "/tokenize", json=body)
        return self._read(_Tokens, response).tokens if response.status_code == 200 else None

    def ends_at(self, model: str, ids: list[int], token: int) -> bool:
        """Return whether an answer ends at a token, by requesting an answer that may contain no other token.

        Args:
            model: an adapter id, or the base's name.
            ids: token ids of the prompt.

        Raises:
            JobFailed: ``SERVING_REFUSED``.
            Unavailable: no response.
        """
        # Two tokens, because with one the answer would end whatever the token is.
        body = {"model": model, "prompt": ids, "max_tokens": 2, "temperature": 0, "allowed_token_ids": [token]}
        response = self._send("POST", "/v1/completions", json=body)
        if response.status_code == 400 and "allowed_token_ids" in response.text:
            return True  # the model has no such token, so no answer continues after it
        if response.status_code != 200:
            raise self._failed(
                f"refused an answer of {model} with {response.status_code}: {response.text[:300]}",
                "Read the serving replica's log.",
            )
        ending = self._read(_Ending, response)
        return [choice.finish_reason for choice in ending.choices] == ["stop"] and ending.usage.completion_tokens == 1

    def default_prompt_ids(
        self, model: str, messages: list[dict[str, Any]], arguments: Mapping[str, Any]
    ) -> list[int] | None:
        """Return the prompt's token ids when the client sets no template argument; None if the replica refuses the
        chat.

        The request is the one that the gateway sends for such a client.

        Args:
            arguments: the adapter's template arguments, which are the defaults.

        Raises:
            JobFailed: ``SERVING_REFUSED``.
            Unavailable: no response.
        """
        request = {"model": model, "messages": messages, "max_tokens": 1, "return_token_ids": True}
        body = with_template_arguments(CHAT, request, arguments)
        response = self._send("POST", CHAT, json=body)
        return self._read(_PromptIds, response).prompt_token_ids if response.status_code == 200 else None

    def read_call(
        self,
        model: str,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        text: str,
        arguments: Mapping[str, Any],
    ) -> ReadCalls:
        """Return the tool calls that a client receives if the answer is forced to be a given string, so that the result
        depends only on the replica's parser and not on what the model would otherwise write.

        Args:
            text: the answer.
            arguments: the adapter's template arguments.

        Raises:
            JobFailed: ``SERVING_REFUSED``.
            Unavailable: no response.
        """
        request = {
            "model": model,
            "messages": messages,
            "tools": tools,
            "temperature": 0,
            "max_tokens": len(text.encode()) + 1,  # a token is at least a byte
            "structured_outputs": {"choice": [text]},
        }
        response = self._send("POST", CHAT, json=with_template_arguments(CHAT, request, arguments))
        if response.status_code != 200:
            return ReadCalls([], f"it refuses the request: {response.text[:300]}")
        [choice] = self._read(_Calls, response).choices
        if choice.finish_reason == "length":
            return ReadCalls([], "its answer was cut")
        called = [call.function for call in choice.message.tool_calls or []]
        return ReadCalls([(function.name, function.arguments) for function in called])

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        response = self._request(method, path, **more)
        if response.status_code >= 500:
            raise self._unavailable(f"status {response.status_code}")
        return response

    def _request(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **more)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unavailable(str(error) or type(error).__name__) from error

    def _read(self, shape: type[_Shape], response: httpx.Response) -> _Shape:
        try:
            return shape.model_validate_json(response.content)
        except ValueError:
            fault = f"sent an unexpected response (status {response.status_code})"
            raise self._failed(fault, SAME_RELEASE) from None

    def _refusal(self, response: httpx.Response) -> ArtifactInvalid | JobFailed:
        """Return the error in a response of one of Mens' own routes."""
        if response.status_code in (401, 403):
            return self._failed("does not accept this worker's serving key", "Set the same MENS_SERVING_KEY on both.")
        try:
            error: dict[str, Any] = response.json()["error"]
            code, message = error["code"], str(error["message"])
        except (ValueError, KeyError, TypeError):
            fault = f"responded with status {response.status_code} without a reason"
            return self._failed(fault, "Check that the address is a Mens serving replica.")
        # A replica of another release may send a code that this one lacks.
        error_code = Code(code) if code in Code.__members__ else Code.SERVING_REFUSED
        return ArtifactInvalid(error_code, message, remedy=error.get("remedy") or "", param=error.get("param"))

    def _failed(self, fault: str, remedy: str) -> JobFailed:
        return JobFailed(Code.SERVING_REFUSED, f"The serving {self.name} {fault}.", remedy=remedy)

    def _unavailable(self, reason: str) -> Unavailable:
        return Unavailable(
            Code.SERVING_UNAVAILABLE,
            f"The serving {self.name} does not respond ({reason}).",
            remedy="Restart it, or remove it from MENS_SERVING_URLS; `mens replicas` shows its last error.",
        )


def _as_prompt(prompts: Sequence[Sequence[int]]) -> list[int] | list[list[int]]:
    ids = [list(prompt) for prompt in prompts]
    return ids[0] if len(ids) == 1 else ids


def _adapter_path(adapter_id: str) -> str:
    return f"/mens/adapters/{quote(adapter_id, safe='')}"
