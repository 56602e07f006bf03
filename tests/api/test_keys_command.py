"""``python -m api.keys``: creates the first key on machines without the command line."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.keys import main
from api.settings import ApiSettings


def test_created_key_is_accepted_by_the_api(
    anonymous: TestClient, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_HOME", str(settings.home))
    assert main(["create", "admin"]) == 0
    output = capsys.readouterr()
    secret = output.out.strip()
    assert "for admin, admin of shared, the operator: may do everything in every tenant" in output.err
    assert anonymous.get("/v1/models", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


def test_key_has_tenant_role_and_limits(app: FastAPI, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_HOME", str(settings.home))
    flags = ["--tenant", "acme", "--role", "trainer", "--rpm", "60", "--concurrent", "4"]
    assert main(["create", "bot", *flags]) == 0
    [key] = app.state.services.keys.all()
    assert (key.tenant, key.role, key.requests_per_minute, key.concurrent_requests) == ("acme", "trainer", 60, 4)


@pytest.mark.parametrize(
    "flags", [["--role", "root"], ["--rpm", "0"], ["--rpm", "1.5"], ["--concurrent", "-1"], ["--rpm", "9" * 9]]
)
def test_invalid_flags_create_no_key(app: FastAPI, flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["create", "bot", *flags])
    assert app.state.services.keys.all() == []


@pytest.mark.parametrize("flags", [["bot", "--tenant", "Acme"], [""], ["x" * 65]])
def test_invalid_names_create_no_key(
    app: FastAPI,
    settings: ApiSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    monkeypatch.setenv("MENS_HOME", str(settings.home))
    assert main(["create", *flags]) == 1
    assert "NAME_INVALID" in capsys.readouterr().err
    assert app.state.services.keys.all() == []


def test_name_that_is_taken_creates_no_key(
    app: FastAPI, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_HOME", str(settings.home))
    assert [main(["create", "admin"]), main(["create", "admin"])] == [0, 1]
    assert "KEY_NAME_TAKEN" in capsys.readouterr().err
    assert len(app.state.services.keys.all()) == 1


def test_without_a_database_the_error_names_it(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MENS_HOME", str(tmp_path_factory.mktemp("empty")))
    assert main(["create", "admin"]) == 1
    assert "DATABASE_UNAVAILABLE" in capsys.readouterr().err
