"""Files that go to the API before the request that names them."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from cli.client.connection import call


def upload(path: Path) -> str:
    """Upload a training file; returns its id."""
    with path.open("rb") as file:
        return _upload(path.name, file)


def upload_text(name: str, text: str) -> str:
    """Upload a text as a file of that name; returns its id."""
    return _upload(name, text.encode())


def _upload(name: str, content: IO[bytes] | bytes) -> str:
    uploaded = call("POST", "/v1/files", data={"purpose": "fine-tune"}, files={"file": (name, content)})
    return str(uploaded["id"])
