"""The API's surface is frozen: a change of the OpenAPI document must be meant. MENS_UPDATE_GOLDEN=1 writes it anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fastapi.testclient import TestClient

GOLDEN = Path(__file__).parent / "golden" / "openapi.json"


def test_the_openapi_document(client: TestClient) -> None:
    document = json.dumps(client.get("/v1/openapi.json").json(), indent=1, sort_keys=True) + "\n"
    if os.environ.get("MENS_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(document)
    assert document == GOLDEN.read_text(), "the API's surface changed; if it was meant, run with MENS_UPDATE_GOLDEN=1"
