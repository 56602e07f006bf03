"""The OpenAPI document is frozen in a golden file: a change must be intended. MENS_UPDATE_GOLDEN=1 writes the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fastapi.testclient import TestClient

GOLDEN = Path(__file__).parent / "golden" / "openapi.json"


def test_openapi_document_is_the_golden_one(client: TestClient) -> None:
    document = json.dumps(client.get("/v1/openapi.json").json(), indent=1, sort_keys=True) + "\n"
    if os.environ.get("MENS_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(document)
    assert document == GOLDEN.read_text(), (
        "the OpenAPI document changed; if that is intended, run with MENS_UPDATE_GOLDEN=1"
    )
