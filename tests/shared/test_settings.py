"""Settings come from MENS_ variables, and every path defaults to one in the home folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from shared.errors import Code, InvalidRequest
from shared.settings import Settings, read_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.upper().startswith("MENS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_default_paths_lie_in_the_home_folder(tmp_path: Path) -> None:
    home = tmp_path / ".mens"
    assert Settings().model_dump(exclude={"serving_key", "metrics_key", "corpus_key"}) == {
        "home": home,
        "database_url": f"sqlite:///{home}/mens.db",
        "broker_url": "redis://127.0.0.1:6379/0",
        "storage_dir": home / "storage",
        "s3_bucket": "",
        "s3_prefix": "",
        "s3_endpoint": "",
        "s3_region": "",
        "s3_path_style": False,
        "cache_dir": home / "cache",
        "cache_bytes": 20 << 30,
        "quant_base": "auto",
        "runs_dir": home / "runs",
        "prepared_dir": home / "prepared",
        "catalog_path": home / "catalog.json",
        "metrics_host": "127.0.0.1",
        "metrics_port": None,
        "webhook_allowed": [],
        "log_format": "text",
        "otlp_endpoint": "",
        "serving_urls": [],
        "serving_dns": "",
        "drain_seconds": 60.0,
        "sandbox": "auto",
        "grader_models": {},
        "remote_models": {},
        "grader_embeddings": None,
        "corpus_sources": {},
    }


def test_targets_of_webhooks_are_checked_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_WEBHOOK_ALLOWED", " hooks.internal, 10.2.0.0/16,")
    assert read_settings(Settings).webhook_allowed == ["hooks.internal", "10.2.0.0/16"]
    monkeypatch.setenv("MENS_WEBHOOK_ALLOWED", "https://hooks.internal")
    with pytest.raises(InvalidRequest, match=r"MENS_WEBHOOK_ALLOWED: 'https://hooks.internal' is not a host name"):
        read_settings(Settings)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MENS_S3_BUCKET", "Not_A_Bucket"),
        ("MENS_S3_BUCKET", "s3://bucket"),
        ("MENS_S3_ENDPOINT", "store.example"),
        ("MENS_S3_ENDPOINT", "https://key:secret@store.example"),
        ("MENS_S3_PREFIX", "a b"),
    ],
)
def test_settings_of_a_bucket_that_cannot_be_are_refused_without_their_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidRequest) as caught:
        read_settings(Settings)
    assert (caught.value.code, caught.value.param) == (Code.SETTINGS_INVALID, variable)
    assert value not in str(caught.value)


def test_making_settings_makes_no_folder(tmp_path: Path) -> None:
    Settings()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("variable", "value", "field", "expected"),
    [
        ("MENS_DATABASE_URL", "postgresql+psycopg://db/mens", "database_url", "postgresql+psycopg://db/mens"),
        ("MENS_BROKER_URL", "redis://broker/3", "broker_url", "redis://broker/3"),
        ("MENS_STORAGE_DIR", "/data/storage", "storage_dir", Path("/data/storage")),
        ("MENS_RUNS_DIR", "/data/runs", "runs_dir", Path("/data/runs")),
        ("MENS_CATALOG_PATH", "/data/c.json", "catalog_path", Path("/data/c.json")),
        ("MENS_SERVING_URLS", "http://a:1, http://b:2 ,", "serving_urls", ["http://a:1", "http://b:2"]),
        ("MENS_SERVING_URLS", "http://a:1", "serving_urls", ["http://a:1"]),
        ("MENS_SERVING_URLS", "", "serving_urls", []),
    ],
)
def test_environment_is_read(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, field: str, expected: object
) -> None:
    monkeypatch.setenv(variable, value)
    assert getattr(Settings(), field) == expected


@pytest.mark.parametrize("variable", ["MENS_HOME", "MENS_DATABASE_URL", "MENS_STORAGE_DIR", "MENS_CATALOG_PATH"])
def test_empty_variable_means_the_default(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    expected = Settings()
    monkeypatch.setenv(variable, "")
    assert Settings() == expected


def test_home_is_made_absolute_and_moves_every_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MENS_HOME", "~/sub/../there")
    settings = Settings()
    assert settings.home == tmp_path / "there"
    assert settings.storage_dir == tmp_path / "there" / "storage"
    assert settings.database_url == f"sqlite:///{tmp_path}/there/mens.db"


def test_argument_wins_over_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MENS_BROKER_URL", "redis://environment/0")
    assert Settings(broker_url="redis://argument/0").broker_url == "redis://argument/0"
    assert Settings(serving_urls=["http://a"]).serving_urls == ["http://a"]


def test_foreign_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_SOMETHING_ELSE", "1")
    monkeypatch.setenv("BROKER_URL", "redis://wrong/0")
    assert Settings().broker_url == "redis://127.0.0.1:6379/0"


def test_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENS_SERVING_KEY", "do-not-print")
    settings = Settings()
    assert settings.serving_key.get_secret_value() == "do-not-print"
    assert "do-not-print" not in f"{settings!r} {settings} {settings.model_dump_json()}"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings().broker_url = "redis://other/0"


@pytest.mark.parametrize("key", ["sk-clé", "sk-a b", "sk-a\n"])
def test_key_that_no_header_can_have_is_refused_without_its_value(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MENS_REMOTE_MODELS", json.dumps({"helper": {"url": "https://x.example/v1", "key": key}}))
    with pytest.raises(InvalidRequest, match="character that a header cannot have") as raised:
        read_settings(Settings)
    assert raised.value.code == "SETTINGS_INVALID"
    assert key not in str(raised.value.as_dict())
