"""The first key, where the command line is not installed."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from api.keys import main
from api.settings import ApiSettings


def test_a_key_that_is_made_opens_the_api(
    anonymous: TestClient, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_HOME", str(settings.home))
    assert main(["create", "admin"]) == 0
    secret = capsys.readouterr().out.strip()
    assert anonymous.get("/v1/models", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


def test_without_a_database_the_reason_is_told(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path_factory.mktemp("empty")))
    assert main(["create", "admin"]) == 1
    assert "DATABASE_UNAVAILABLE" in capsys.readouterr().err
