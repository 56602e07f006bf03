"""One real vLLM server for the whole test session, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.serving_installation import ServingInstallation
from tests.support.vllm_server import VllmServer, start_server


@pytest.fixture(scope="session")
def vllm_server(serving_installation: ServingInstallation) -> Iterator[VllmServer]:
    """A replica of the installation's base, with default settings."""
    with start_server(serving_installation) as server:
        yield server


@pytest.fixture(scope="module")
def client(vllm_server: VllmServer) -> Iterator[httpx.Client]:
    """A client with the serving key."""
    with vllm_server.client() as client:
        yield client
