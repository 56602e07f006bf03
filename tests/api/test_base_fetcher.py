"""Hub models fetched in the background: each once, a failed one again, and none after the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from api import base_fetcher
from api.base_fetcher import BaseFetcher
from shared.base_models.catalog import BaseModelEntry, Catalog, HubSource, LocalSource
from shared.errors import Code, Unavailable
from tests.support.builders import base_entry
from tests.support.waiting import eventually

CATALOG_PATH = Path("/catalog.json")


def hub_base(name: str) -> BaseModelEntry:
    source = HubSource(repo=f"org/{name}", revision="0" * 40)
    return base_entry().model_copy(update={"name": name, "source": source, "digests": {name: "0" * 64}})


class Hub:
    """Replaces the hub; records what is fetched, and fails while it is away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fetched: list[str] = []
        self.is_away = False
        monkeypatch.setattr(base_fetcher, "locate", self.locate)

    def locate(self, entry: BaseModelEntry, catalog_path: Path) -> Path:
        assert catalog_path == CATALOG_PATH
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
    fetcher = BaseFetcher(lambda: Catalog(bases=bases), CATALOG_PATH)
    fetcher.fetch_missing()
    bases.append(hub_base("two"))
    fetcher.fetch_missing()
    assert hub.fetched == ["one", "two"]


def test_failed_fetch_is_tried_again(hub: Hub) -> None:
    fetcher = BaseFetcher(lambda: Catalog(bases=[hub_base("one")]), CATALOG_PATH)
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

    fetcher = BaseFetcher(catalog, CATALOG_PATH)
    fetcher.start()
    eventually(lambda: hub.fetched == ["one"])
    fetcher.close()
    eventually(lambda: not fetcher._thread.is_alive())


def test_nothing_is_fetched_after_the_end(hub: Hub) -> None:
    fetcher = BaseFetcher(lambda: Catalog(bases=[hub_base("one")]), CATALOG_PATH)
    fetcher.close()
    fetcher.fetch_missing()
    assert hub.fetched == []
