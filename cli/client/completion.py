"""Completion of ids and names in a shell: asks the installation, and is silent if it does not respond."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, suppress
from typing import Any

from cli.client.connection import PAGE, connect

Completer = Callable[[str], list[tuple[str, str]]]
TIMEOUT_SECONDS = 2.0
"""Longest wait for the installation: the user has pressed TAB."""


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest jobs whose id begins or ends with the typed text, each with a description."""
    described = ((job["id"], f"{job['state']}, {job['name']} on {job['base_model']}") for job in _listed("/v1/jobs"))
    return [
        (name, description)
        for name, description in described
        if name.startswith(incomplete) or name.endswith(incomplete)
    ]


def complete_file(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest files whose id begins with the typed text, with their names."""
    return _beginning(incomplete, ((file["id"], file["filename"]) for file in _listed("/v1/files")))


def complete_alias(incomplete: str) -> list[tuple[str, str]]:
    """Return aliases that begin with the typed text."""
    return _beginning(incomplete, ((alias["name"], "alias") for alias in _listed("/v1/aliases")))


def complete_model(incomplete: str) -> list[tuple[str, str]]:
    """Return the names that `model` accepts and that begin with the typed text: bases, adapters, aliases."""
    return _beginning(incomplete, _models())


def complete_base(incomplete: str) -> list[tuple[str, str]]:
    """Return bases that begin with the typed text."""
    return _beginning(incomplete, (model for model in _models() if model[1] == "base"))


def complete_adapter(incomplete: str) -> list[tuple[str, str]]:
    """Return ids of adapters that begin with the typed text."""
    return _beginning(incomplete, (model for model in _models() if model[1] == "adapter"))


def _models() -> Iterator[tuple[str, str]]:
    return ((model["id"], model["mens"]["kind"]) for model in _listed("/v1/models"))


def _beginning(incomplete: str, candidates: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, said) for name, said in candidates if name.startswith(incomplete)]


def _listed(path: str) -> list[Mapping[str, Any]]:
    """Return the first page of a list; silently return an empty list if the installation cannot be reached."""
    query: dict[str, Any] = {"limit": PAGE} if path in ("/v1/jobs", "/v1/files") else {}
    query |= {"view": "summary"} if path == "/v1/jobs" else {}
    with suppress(Exception), redirect_stderr(io.StringIO()), connect().client(timeout=TIMEOUT_SECONDS) as client:
        rows: list[Mapping[str, Any]] = client.get(path, params=query).raise_for_status().json()["data"]
        return rows
    return []
