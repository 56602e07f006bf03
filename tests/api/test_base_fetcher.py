"""Hub models fetched in the background: each once, again after a failure, and none after shutdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from api import base_fetcher
from api.base_fetcher import BaseFetcher
from shared.base_models.catalog import BaseModelEntry, Catalog, HubSource, LocalSource, MergedFrom
from shared.errors import Code, Unavailable
from shared.settings import Settings
from tests.support.builders import base_entry
from tests.support.waiting import eventually

SETTINGS = Settings(home=Path("/home"), catalog_path=Path("/catalog.json"))


def hub_base(name: str) -> BaseModelEntry:
    source = HubSource(repo=f"org/{name}", revision="0" * 40)
    return base_entry().model_copy(update={"name": name, "source": source, "digests": {name: "0" * 64}})


class Hub:
    """Replaces the hub; records what is fetched, and fails while it is away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fetched: list[str] = []
        self.is_away = False
        monkeypatch.setattr(base_fetcher, "locate_base", self.locate)

    def locate(self, entry: BaseModelEntry, settings: Settings) -> Path:
        assert settings is SETTINGS
        if self.is_away:
            raise Unavailable(Code.HUB_UNAVAILABLE, "away")
        self.fetched.append(entry.name)
        return Path()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


def test_each_hub_model_is_fetched_once(hub: Hub) -> None:
    bases = [hub_base("one"), base_entry()]
    assert isinstance(bases[1].source, LocalSource)
    fetcher = BaseFetcher(lambda: Catalog(bases=bases), SETTINGS)
    fetcher.fetch_missing()
    bases.append(hub_base("two"))
    fetcher.fetch_missing()
    assert hub.fetched == ["one", "two"]


def test_merged_model_of_another_machine_is_fetched(hub: Hub, tmp_path: Path) -> None:
    merged = MergedFrom(digest="d" * 64, adapter_id="support@d", base_model="m", probes_digest="e" * 64)
    here, elsewhere = (
        base_entry(name).model_copy(update={"source": LocalSource(path=path), "merged_from": merged})
        for name, path in (("here", str(tmp_path)), ("elsewhere", "bases/elsewhere"))
    )
    elsewhere = elsewhere.model_copy(update={"digests": {"model.safetensors": "f" * 64}})
    BaseFetcher(lambda: Catalog(bases=[here, elsewhere]), SETTINGS).fetch_missing()
    assert hub.fetched == ["elsewhere"]


def test_failed_fetch_is_tried_again(hub: Hub) -> None:
    fetcher = BaseFetcher(lambda: Catalog(bases=[hub_base("one")]), SETTINGS)
    hub.is_away = True
    fetcher.fetch_missing()
    hub.is_away = False
    fetcher.fetch_missing()
    assert hub.fetched == ["one"]


def test_catalogue_that_cannot_be_read_does_not_end_the_thread(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_fetcher, "POLL_SECONDS", 0.01)
    catalogs = iter([ValueError("half a file")])

    def catalog() -> Catalog:
        for error in catalogs:
            raise error
        return Catalog(bases=[hub_base("one")])

    fetcher = BaseFetcher(catalog, SETTINGS)
    fetcher.start()
    eventually(lambda: hub.fetched == ["one"])
    fetcher.close()
    eventually(lambda: not fetcher._thread.is_alive())


def test_nothing_is_fetched_after_the_end(hub: Hub) -> None:
    fetcher = BaseFetcher(lambda: Catalog(bases=[hub_base("one")]), SETTINGS)
    fetcher.close()
    fetcher.fetch_missing()
    assert hub.fetched == []
