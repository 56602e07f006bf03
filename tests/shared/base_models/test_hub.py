"""The source of a base's files: a folder, or a pinned and filtered hub download."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from shared.base_models import hub
from shared.base_models.catalog import BaseModelEntry, HubSource, LocalSource
from shared.errors import Code, Forbidden, NotFound, Unavailable
from tests.support.builders import base_entry

SOURCE = HubSource(repo="Org/Big", revision="0123456789abcdef0123456789abcdef01234567")


def http_error(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    return kind("no", response=httpx2.Response(status, request=httpx2.Request("GET", "https://hub.invalid")))


def failing_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(hub, "snapshot_download", download)


def test_relative_folder_is_next_to_the_catalogue(tmp_path: Path) -> None:
    (tmp_path / "bases" / "tiny").mkdir(parents=True)
    assert hub.locate(base_entry(), tmp_path / "catalog.json") == (tmp_path / "bases" / "tiny").resolve()


def test_absolute_folder_is_used_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    assert hub.fetch(LocalSource(path=str(folder)), Path("/catalog.json")) == folder.resolve()


def test_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="bases/tiny") as caught:
        hub.locate(base_entry(), tmp_path / "catalog.json")
    assert caught.value.code is Code.MODEL_NOT_FOUND


def test_download_is_pinned_and_takes_model_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def download(*args: Any, **kwargs: Any) -> str:
        calls.append((args, kwargs))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    entry = BaseModelEntry(name="big", source=SOURCE, digests={"config.json": "a" * 64})
    assert hub.locate(entry, tmp_path / "catalog.json") == tmp_path
    [(args, kwargs)] = calls
    assert (args, kwargs["revision"]) == (("Org/Big",), SOURCE.revision)
    patterns = kwargs["allow_patterns"]
    unsafe = ["pytorch_model.bin", "x.pt", "x.pth", "x.ckpt", "x.pkl", "modeling_big.py", "x.gguf", "sub/model.bin"]
    assert not [name for name in unsafe if any(fnmatch(name, pattern) for pattern in patterns)]
    wanted = ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "chat_template.jinja"]
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in wanted)


# The revision's case fails while `_download` counts it among the faults that a retry may fix.
@pytest.mark.parametrize("kind", [RepositoryNotFoundError, RevisionNotFoundError])
def test_what_the_hub_does_not_have_is_not_found(kind: type[HfHubHTTPError], monkeypatch: pytest.MonkeyPatch) -> None:
    failing_with(http_error(kind, 404), monkeypatch)
    with pytest.raises(NotFound) as caught:
        hub.fetch(SOURCE, Path("catalog.json"))
    assert caught.value.code is Code.MODEL_NOT_FOUND
    assert not caught.value.retryable


def test_gated_repository_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_with(http_error(GatedRepoError, 403), monkeypatch)
    with pytest.raises(Forbidden, match="gated") as caught:
        hub.fetch(SOURCE, Path("catalog.json"))
    assert caught.value.code is Code.HUB_ACCESS_DENIED
    assert "HF_TOKEN" in caught.value.remedy


@pytest.mark.parametrize(
    "error",
    [http_error(HfHubHTTPError, 503), LocalEntryNotFoundError("offline"), ConnectionError("down"), OSError("no")],
    ids=lambda error: type(error).__name__,
)
def test_failed_download_is_unavailable(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_with(error, monkeypatch)
    with pytest.raises(Unavailable, match="Org/Big") as caught:
        hub.fetch(SOURCE, Path("catalog.json"))
    assert caught.value.code is Code.HUB_UNAVAILABLE
    assert caught.value.retryable


def test_dropped_connection_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the hub's client lets it through, whose HTTP library this has to be: its other errors are of that library too.
    assert issubclass(HfHubHTTPError, httpx2.HTTPError)
    failing_with(httpx2.RemoteProtocolError("peer closed connection"), monkeypatch)
    with pytest.raises(Unavailable):
        hub.fetch(SOURCE, Path("catalog.json"))


def test_control_plane_reads_the_cache_and_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def download(*_: Any, **kwargs: Any) -> str:
        calls.append(kwargs)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    entry = base_entry().model_copy(update={"source": SOURCE})
    assert hub.locate_fetched(entry, tmp_path / "catalog.json") == tmp_path
    assert calls[0]["local_files_only"] is True


def test_hub_model_that_is_not_in_the_cache_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    entry = base_entry().model_copy(update={"source": SOURCE})
    with pytest.raises(Unavailable) as caught:
        hub.locate_fetched(entry, tmp_path / "catalog.json")
    assert (caught.value.code, caught.value.retryable) == (Code.BASE_NOT_FETCHED, True)
    assert caught.value.remedy.startswith(f"Start a replica of it, which fetches it (`mens up --base {entry.name}`)")
