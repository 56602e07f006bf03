"""``mens adapter push``: the hub's own client commits the complete adapter to a hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import yaml

from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.artifacts.signatures import SIGNATURE_NAME
from shared.database.adapters import NewAdapter
from tests.support.cli_installation import CliInstallation
from tests.support.hub_server import TOKEN, Hub, hub_server

pytestmark = [
    pytest.mark.network,
    pytest.mark.filterwarnings("ignore:Use 'content="),
]  # the hub's client of its own HTTP library


@pytest.fixture
def hub(installation: CliInstallation) -> Iterator[Hub]:
    # Xet's protocol has no server but the hub itself; LFS is what other hubs speak.
    installation.patch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    installation.patch.setenv("HF_TOKEN", TOKEN)
    with hub_server() as server:
        yield server


def test_a_pushed_adapter_is_the_stored_one_in_one_commit(
    installation: CliInstallation, adapter: NewAdapter, hub: Hub, tmp_path: Path
) -> None:
    said = installation.mens("adapter", "push", adapter.id, "acme/support", "--endpoint", hub.url, "--private")
    assert f"{hub.url}/acme/support/commit/" in said
    files = hub.repositories["acme/support"]
    assert files.keys() >= {WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME, SIGNATURE_NAME, "README.md", ".gitattributes"}
    assert hub.commits == [(f"Add {adapter.id}", len(files))]
    assert hub.private == {"acme/support"}
    assert hub.agents[0].startswith("mens/")
    assert list(hub.large.values()) == [files[WEIGHTS_NAME]]
    front = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert (front["base_model"], front["license"]) == ("tiny", "apache-2.0")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, content in files.items():
        (copy / name).write_bytes(content)
    assert adapter.id in installation.mens("adapter", "verify", str(copy), "--trusted", str(tmp_path / "trusted"))


def test_a_second_push_goes_to_the_same_repository(
    installation: CliInstallation, adapter: NewAdapter, hub: Hub
) -> None:
    for _ in range(2):
        installation.mens("adapter", "push", adapter.id, "acme/support", "--endpoint", hub.url)
    assert (list(hub.repositories), len(hub.commits), hub.private) == (["acme/support"], 2, set())


def test_what_the_hub_refuses_is_said(installation: CliInstallation, adapter: NewAdapter, hub: Hub) -> None:
    installation.patch.setenv("HF_TOKEN", "hf_other")
    said = installation.mens("adapter", "push", adapter.id, "acme/support", "--endpoint", hub.url, code=1)
    assert "upload to the hub failed" in said and "401" in said
    assert not hub.repositories
    named = installation.mens("adapter", "push", adapter.id, "no/such/name", "--endpoint", hub.url, code=1)
    assert "no/such/name" in named


def test_without_the_hubs_client_nothing_is_downloaded(installation: CliInstallation, adapter: NewAdapter) -> None:
    installation.patch.setattr("importlib.util.find_spec", lambda _: None)
    assert "mens[hub]" in installation.mens("adapter", "push", adapter.id, "acme/support", code=1)
