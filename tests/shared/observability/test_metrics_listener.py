"""The listener for Prometheus on a real socket: who can read it, and who cannot."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from shared.errors import Code, InvalidRequest
from shared.observability.metrics_listener import MetricsListener, listen, process_registry
from shared.settings import Settings

pytestmark = pytest.mark.network
KEY = "scrape-key"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    registry = process_registry()
    Counter("mens_things", "Things.", registry=registry).inc(3)
    listener = MetricsListener(registry, "127.0.0.1", 0, KEY)
    yield f"http://127.0.0.1:{listener.port}"
    listener.close()


def test_scraper_with_the_key_reads_the_registry(url: str) -> None:
    answer = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    values = {s.name: s.value for f in text_string_to_metric_families(answer.text) for s in f.samples if not s.labels}
    assert values["mens_things_total"] == 3
    assert values["process_resident_memory_bytes"] > 1 << 20


@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {KEY}", KEY, f"Bearer {KEY}x", "Bearer é"])
def test_nobody_else_does(url: str, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    answer = httpx.get(f"{url}/metrics", headers=headers)
    assert (answer.status_code, answer.text) == (401, "")


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/metrics"), ("GET", "/metrics/../x")])
def test_there_is_nothing_else(url: str, method: str, path: str) -> None:
    assert httpx.request(method, url + path, headers={"Authorization": f"Bearer {KEY}"}).status_code == 404


def test_silent_client_delays_no_scrape(url: str) -> None:
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)):
        assert httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {KEY}"}, timeout=30).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "metrics.internal"])
def test_address_that_others_reach_takes_a_key(host: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        listen(process_registry(), Settings(metrics_host=host, metrics_port=0))
    assert (refused.value.code, refused.value.param) == (Code.SETTINGS_INVALID, "MENS_METRICS_KEY")


def test_port_that_is_taken_says_so() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(InvalidRequest, match="MENS_METRICS_PORT") as refused:
        listen(process_registry(), Settings(metrics_port=taken.getsockname()[1]))
    assert refused.value.param == "MENS_METRICS_PORT"


def test_no_port_means_no_listener() -> None:
    assert listen(process_registry(), Settings()) is None
