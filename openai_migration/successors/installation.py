"""The installation that successors are trained on: requests that raise Mens' own errors, and uploads that are never
repeated.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from cli.client.connection import Connection, unreachable
from cli.client.remedies import our_code
from openai_migration.archive.folder import write_json
from shared.errors import Code, MensError, NotFound
from shared.hashing import digest_file
from shared.http_retry import Outcome, Retries

UPLOADS = "uploads.json"
"""Ids of uploaded files by installation and content, so that a repeated step uploads nothing twice."""
TIMEOUT_SECONDS = 600.0


def _is_limited(outcome: Outcome) -> bool:
    return isinstance(outcome, httpx.Response) and outcome.status_code == httpx.codes.TOO_MANY_REQUESTS


RATE_LIMITED = Retries(attempts=1, limit_seconds=600.0, is_temporary=_is_limited)
"""Waits only while the key's rate limit is reached. A request that fails otherwise may have changed something."""


class Installation:
    """An installation's API; a context manager.

    Args:
        connection: address and key.
        folder: the archive's folder, which records uploads.
    """

    def __init__(self, connection: Connection, folder: Path) -> None:
        self.connection = connection
        self._client = connection.client(TIMEOUT_SECONDS)
        self._uploads = folder / UPLOADS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def call(self, method: str, path: str, **request: Any) -> Any:
        """Return the JSON body of a response; if the key's rate limit is reached, wait and retry.

        Raises:
            MensError: the API's error, with its code; ``API_UNAVAILABLE`` if nothing responds.
        """
        response = RATE_LIMITED.send(partial(self._client.request, method, path, **request))
        if isinstance(response, httpx.RequestError):
            raise unreachable(self.connection, response)
        if response.is_error:
            raise _error_of(response)
        return response.json()

    def find(self, path: str) -> Any | None:
        """Return the JSON body of a GET; None if the object does not exist."""
        try:
            return self.call("GET", path)
        except NotFound:
            return None

    def upload(self, path: Path) -> str:
        """Return the id of an uploaded file with a file's content; an earlier upload is reused while it exists."""
        sha256, uploads = digest_file(path), self._stored_uploads()
        here = uploads.setdefault(self.connection.url, {})
        if sha256 in here and self.find(f"/v1/files/{here[sha256]}"):
            return here[sha256]
        with path.open("rb") as file:
            uploaded = self.call("POST", "/v1/files", data={"purpose": "fine-tune"}, files={"file": (path.name, file)})
        here[sha256] = str(uploaded["id"])
        write_json(self._uploads, uploads)
        return here[sha256]

    def _stored_uploads(self) -> dict[str, dict[str, str]]:
        if not self._uploads.is_file():
            return {}
        return msgspec.json.decode(self._uploads.read_bytes(), type=dict[str, dict[str, str]])


def _error_of(response: httpx.Response) -> MensError:
    """Return Mens' error in a response; if another program responded, an error with the content."""
    kind = NotFound if response.status_code == httpx.codes.NOT_FOUND else MensError
    try:
        error = response.json()["error"]
        code, mens = Code(our_code(error)), error.get("mens", {})
    except (ValueError, KeyError, TypeError):
        return kind(Code.INTERNAL_ERROR, f"{response.url} responded {response.status_code}: {response.text[:200]}")
    remedy = str(mens.get("remedy", ""))
    message = str(error["message"]).removesuffix(remedy).strip()
    return kind(code, message, remedy=remedy, param=error.get("param"), details=mens.get("details"))
