"""Allowed connections: NetworkPolicies, and access through an Ingress or a Gateway."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.support.helm_chart import MINIMAL, Chart, Document, Values, of

DATABASE = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"protocol": "TCP", "port": 5432}]}
METRICS: Values = {**MINIMAL["secret"], "metricsKey": "metrics-key-metrics-key"}
GATEWAY = "--api-versions=gateway.networking.k8s.io/v1"
COMPONENT = "app.kubernetes.io/component"


@pytest.fixture
def chart(helm: Any, tmp_path: Path) -> Chart:
    return Chart(helm, tmp_path)


def policies(documents: list[Document]) -> dict[str, Document]:
    found = {
        document["spec"]["podSelector"]["matchLabels"][COMPONENT]: document["spec"]
        for document in of(documents, "NetworkPolicy")
    }
    assert len(found) == len(of(documents, "NetworkPolicy"))
    return found


def callers(policy: Document) -> set[tuple[str, int]]:
    """The release's components and other peers that a policy lets in, each with the port."""
    found = set()
    for rule in policy["ingress"]:
        for peer in rule.get("from", [{}]):
            labels = peer.get("podSelector", {}).get("matchLabels", {})
            name = labels.get(COMPONENT) or (str(peer["namespaceSelector"]) if peer else "everyone")
            found |= {(name, port["port"]) for port in rule["ports"]}
    return found


def test_every_pod_has_a_policy(chart: Chart) -> None:
    found = policies(chart.render(MINIMAL))
    assert set(found) == {"api", "worker", "beat", "serving", "migration", "test"}
    assert all("Ingress" in policy["policyTypes"] for policy in found.values())


def test_replicas_hear_the_tiers_that_call_them_only(chart: Chart) -> None:
    found = policies(chart.render(MINIMAL))
    assert callers(found["serving"]) == {(name, 8001) for name in ("api", "worker", "beat", "test")}
    assert callers(found["api"]) == {("everyone", 8000)}
    assert not callers(found["worker"]) | callers(found["beat"]) | callers(found["migration"])


def test_scraper_reaches_the_metrics_and_nothing_else_of_the_control_tiers(chart: Chart) -> None:
    found = policies(chart.render({**MINIMAL, "secret": METRICS, "metrics": {"enabled": True}}))
    scraper = str({"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}})
    assert callers(found["serving"]) >= {(scraper, 8001)}
    for name in ("api", "worker", "beat"):
        assert {port for peer, port in callers(found[name]) if peer == scraper} == {9100}, name


def test_named_callers_of_the_api_leave_the_release_its_own(chart: Chart) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}
    found = policies(chart.render({**MINIMAL, "networkPolicy": {"apiFrom": [peer]}}))
    assert callers(found["api"]) == {(str(peer["namespaceSelector"]), 8000), ("worker", 8000), ("test", 8000)}


def test_egress_is_bounded_to_dns_the_release_and_what_is_named(chart: Chart) -> None:
    egress = {"enabled": True, "control": [DATABASE]}
    found = policies(chart.render({**MINIMAL, "networkPolicy": {"egress": egress}}))
    for name, policy in found.items():
        assert policy["policyTypes"] == ["Ingress", "Egress"], name
        dns, *others = policy["egress"]
        assert [port["port"] for port in dns["ports"]] == [53, 53], name
        named = [rule for rule in others if rule == DATABASE]
        own = [
            peer["podSelector"]["matchLabels"][COMPONENT] for rule in others if rule != DATABASE for peer in rule["to"]
        ]
        assert bool(named) == (name in {"api", "worker", "beat", "migration"}), name
        assert own == ([] if name in {"serving", "migration"} else ["api", "serving"]), name


def test_policies_can_be_left_to_the_cluster(chart: Chart) -> None:
    assert not of(chart.render({**MINIMAL, "networkPolicy": {"enabled": False}}), "NetworkPolicy")


def test_ingress_leads_to_the_api(chart: Chart) -> None:
    ingress = {
        "enabled": True,
        "className": "nginx",
        "host": "mens.internal",
        "tlsSecret": "tls",
        "annotations": {"a": "b"},
    }
    (found,) = of(chart.render({**MINIMAL, "ingress": ingress}), "Ingress")
    assert found["metadata"]["annotations"] == {"a": "b"}
    assert found["spec"]["ingressClassName"] == "nginx"
    assert found["spec"]["tls"] == [{"secretName": "tls", "hosts": ["mens.internal"]}]
    (rule,) = found["spec"]["rules"]
    backend = {"service": {"name": "mens-api", "port": {"name": "http"}}}
    assert rule == {
        "host": "mens.internal",
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
    }


def test_route_leads_to_the_api_without_a_time_limit(chart: Chart) -> None:
    gateway = {"enabled": True, "parentRefs": [{"name": "public", "namespace": "gw"}], "hostnames": ["mens.internal"]}
    documents = chart.render({**MINIMAL, "gateway": gateway, "api": {"service": {"port": 80}}}, GATEWAY)
    (route,) = of(documents, "HTTPRoute")
    assert route["spec"]["parentRefs"] == gateway["parentRefs"]
    assert route["spec"]["hostnames"] == ["mens.internal"]
    (rule,) = route["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s"}
    (service,) = [s for s in of(documents, "Service") if s["metadata"]["name"] == "mens-api"]
    assert rule["backendRefs"] == [{"name": "mens-api", "port": service["spec"]["ports"][0]["port"]}]


def test_gateway_without_its_resources_in_the_cluster_is_refused(chart: Chart) -> None:
    gateway = {"enabled": True, "parentRefs": [{"name": "public"}]}
    done = chart.run("template", "mens", values={**MINIMAL, "gateway": gateway})
    assert done.returncode
    assert "the cluster has no gateway.networking.k8s.io/v1" in done.stderr


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"gateway": {"enabled": True}}, "gateway.parentRefs: Array must have at least 1 items"),
        ({"networkPolicy": {"egress": {"enabled": True}}}, "networkPolicy.egress.control: Array must have at least 1"),
        ({"networkPolicy": {"apiFrom": [{}]}}, "networkPolicy.apiFrom.0: Must have at least 1 properties"),
        ({"networkPolicy": {"apiFrom": [{"cidr": "10.0.0.0/8"}]}}, "Additional property cidr is not allowed"),
    ],
)
def test_bad_values_are_refused(chart: Chart, values: Values, complaint: str) -> None:
    done = chart.run("template", "mens", values={**copy.deepcopy(MINIMAL), **values})
    assert done.returncode
    assert complaint in done.stderr
