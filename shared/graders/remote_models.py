"""Models of other servers for graders, as configured by the operator: judges, and one for embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any

import httpx

from shared.errors import Code, InvalidRequest, Unavailable
from shared.graders.text_similarity import no_embeddings
from shared.http_retry import Retries, keyed_client
from shared.settings import RemoteModel

# Few, because a caller waits for the grade: the waits add up to three seconds.
ATTEMPTS = 3
LONGEST_WAIT_SECONDS = 10.0
READ_SECONDS = 120.0
OF_THE_REQUEST = frozenset({400, 413, 422})
"""Statuses that mean that only this request failed; any other failure would affect the next request too."""


class RemoteModels:
    """Requests to models of other servers. Safe to use from many threads.

    Args:
        judges: models that graders of the types ``score_model`` and ``label_model`` may name, by name.
        embeddings: the model that ``cosine`` compares with; None: no such model.
    """

    def __init__(self, judges: Mapping[str, RemoteModel], embeddings: RemoteModel | None) -> None:
        self._judges, self._embeddings = judges, embeddings
        self._client = keyed_client(read_seconds=READ_SECONDS)

    def __enter__(self) -> RemoteModels:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __contains__(self, name: object) -> bool:
        return name in self._judges

    @property
    def embeds(self) -> bool:
        """Return true if a model for embeddings is available."""
        return self._embeddings is not None

    def complete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request to the judge that its ``model`` names; return the chat completion.

        Raises:
            Unavailable: ``GRADER_MODEL_UNAVAILABLE``: its server does not respond, or refuses the key.
            InvalidRequest: ``GRADER_MODEL_ANSWER_INVALID``: it refuses this request.
        """
        name = str(request["model"])
        return self._post("/chat/completions", name, self._judges[name], request)

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Return an embedding of each string.

        Raises:
            InvalidRequest: ``GRADER_UNSUPPORTED``: no model for embeddings is named here. Also the errors of
                :meth:`complete`.
        """
        if self._embeddings is None:
            raise no_embeddings()
        reply = self._post("/embeddings", "MENS_GRADER_EMBEDDINGS", self._embeddings, {"input": texts})
        try:
            rows = sorted(reply["data"], key=lambda row: int(row["index"]))
            vectors = [[float(number) for number in row["embedding"]] for row in rows]
        except (KeyError, TypeError, ValueError):
            vectors = []
        if len(vectors) != len(texts) or len({len(vector) for vector in vectors}) != 1:
            raise InvalidRequest(
                Code.GRADER_MODEL_ANSWER_INVALID,
                f"{self._embeddings.url} did not return an embedding for each string.",
                remedy="Check that the model in MENS_GRADER_EMBEDDINGS is an embedding model.",
                param="evaluation_metric",
            )
        return vectors

    def _post(self, route: str, name: str, target: RemoteModel, body: Mapping[str, Any]) -> dict[str, Any]:
        secret = target.key.get_secret_value()
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        content = {**body, "model": target.model or name}
        request = partial(self._client.post, target.url.rstrip("/") + route, json=content, headers=headers)
        outcome = Retries(ATTEMPTS, LONGEST_WAIT_SECONDS).send(request)
        if isinstance(outcome, httpx.RequestError):
            reason = f"does not respond ({type(outcome).__name__})"
        elif outcome.is_success:
            return _object(outcome, name)
        elif outcome.status_code in OF_THE_REQUEST:
            raise _refused(name, f"status {outcome.status_code}, {outcome.text[:200]!r}")
        else:
            reason = f"answers with status {outcome.status_code}"
        # The message leaves out the response's content, because at a wrong address any server may answer.
        raise Unavailable(
            Code.GRADER_MODEL_UNAVAILABLE,
            f"The server of {name} {reason}.",
            remedy=(
                "Try again later. An operator: check its url and key in MENS_REMOTE_MODELS or MENS_GRADER_EMBEDDINGS."
            ),
        )


def _object(response: httpx.Response, name: str) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _refused(name, "its answer is not a JSON object")
    return content


def _refused(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(
        Code.GRADER_MODEL_ANSWER_INVALID,
        f"{name} did not return a judgement: {reason}.",
        remedy="Check that this model accepts chat requests with a JSON Schema as response_format.",
        param="model",
    )
