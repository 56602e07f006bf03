"""Dashboard and alert rules: their metrics exist, rules fire on synthetic series, each has a runbook, and the chart
includes them.
"""

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.debian_package import unpack_debian_package
from tests.support.helm_chart import MINIMAL, SEVERAL, Chart, Values, environment, of, pods
from tests.support.metric_names import metric_names

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "helm" / "rules" / "mens.yaml"
DASHBOARD = ROOT / "deploy" / "helm" / "dashboards" / "mens.json"
CASES = ROOT / "tests" / "deploy" / "alerts.yaml"
RUNBOOKS = (ROOT / "docs" / "runbook.md").read_text()
DEBIAN_PACKAGE = "prometheus"
FROM_OTHERS = {"up", "process_start_time_seconds", "process_resident_memory_bytes"}
"""Metrics of Prometheus and of its client library."""
KEY = "metrics-key-metrics-key"
MONITORED: Values = {
    **MINIMAL,
    "secret": {**MINIMAL["secret"], "metricsKey": KEY},
    "metrics": {"enabled": True, "labels": {"release": "prometheus"}},
}
OPERATOR = ("--api-versions", "monitoring.coreos.com/v1")


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def named(expression: str) -> set[str]:
    """Metrics of an expression, without the endings of a histogram's series."""
    names = re.findall(r"\b(mens_\w+|up|process_\w+)\b(?=\s*[{\[)><=]|\s|$)", expression)
    return {re.sub(r"(_seconds)_(bucket|count|sum)$", r"\1", name) for name in names}


@pytest.fixture(scope="session")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prometheus' own checker, as Debian packages it."""
    binary = ROOT / ".tools" / DEBIAN_PACKAGE / "promtool"
    if not binary.exists():
        folder = tmp_path_factory.mktemp(DEBIAN_PACKAGE)
        unpack_debian_package(DEBIAN_PACKAGE, folder)
        binary.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "usr" / "bin" / "promtool", binary)
    return binary


def run(promtool: Path, *arguments: object) -> str:
    done = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.deploy
def test_rules_are_rules(promtool: Path) -> None:
    assert f"{len(alerts())} rules found" in run(promtool, "check", "rules", "--lint-fatal", RULES)


@pytest.mark.deploy
def test_alerts_fire_on_what_they_are_for_and_on_nothing_else(promtool: Path) -> None:
    run(promtool, "test", "rules", CASES)


@pytest.mark.deploy
def test_queries_of_the_dashboard_are_expressions(promtool: Path, tmp_path: Path) -> None:
    records = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries())]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    run(promtool, "check", "rules", path)


def test_every_alert_has_series_that_it_fires_on_and_series_that_it_does_not() -> None:
    tests = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    names = {alert["alert"] for alert in alerts()}
    assert {case["alertname"] for case in tests if case["exp_alerts"]} == names
    assert {case["alertname"] for case in tests if not case["exp_alerts"]} == names


def test_every_queried_metric_exists() -> None:
    known = {metric.name for tier in metric_names().values() for metric in tier} | FROM_OTHERS
    for expression in [*queries(), *(alert["expr"] for alert in alerts())]:
        assert named(expression), expression
        assert named(expression) <= known, expression


def test_every_metric_is_in_the_dashboard() -> None:
    shown = set().union(*map(named, queries()))
    assert {metric.name for tier in metric_names().values() for metric in tier} <= shown


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {alert["alert"] for alert in alerts()} == set(re.findall(r"^### (Mens\w+)$", RUNBOOKS, re.MULTILINE))
    for alert in alerts():
        name = alert["alert"]
        assert alert["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
        entry = RUNBOOKS.partition(f"### {name}\n")[2].partition("\n### ")[0]
        assert all(f"**{part}:**" in entry for part in ("Means", "Look at", "Then")), name


def render(helm: Any, folder: Path, values: Values, *more: str) -> list[dict[str, Any]]:
    done = Chart(helm, folder).run("template", "mens", "--kube-version", "1.32.0", *more, values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.mark.deploy
def test_chart_carries_dashboard_rules_and_monitors(helm: Any, tmp_path: Path) -> None:
    documents = render(helm, tmp_path, MONITORED, *OPERATOR)
    (rules,) = of(documents, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load(RULES.read_text())
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    (dashboard,) = [d for d in of(documents, "ConfigMap") if "grafana_dashboard" in d["metadata"]["labels"]]
    assert json.loads(dashboard["data"]["mens.json"]) == json.loads(DASHBOARD.read_text())


@pytest.mark.deploy
def test_monitors_find_a_port_that_listens_and_the_key(helm: Any, tmp_path: Path) -> None:
    documents = render(helm, tmp_path, MONITORED, *OPERATOR)
    (secret,) = [secret for secret in of(documents, "Secret") if secret["metadata"]["name"] == "mens-secret"]
    assert secret["stringData"]["MENS_METRICS_KEY"] == KEY
    by_component = {
        document["metadata"]["labels"]["app.kubernetes.io/component"]: document["spec"]["template"]["spec"]
        for document in of(documents, "Deployment")
    }
    monitors = of(documents, "PodMonitor")
    found = {monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for monitor in monitors}
    assert found == set(by_component) == {"api", "worker", "beat", "serving"}
    for monitor in monitors:
        component = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        variables = environment(by_component[component])
        ports = {port["name"]: port["containerPort"] for port in by_component[component]["containers"][0]["ports"]}
        setting = "MENS_SERVING_PORT" if component == "serving" else "MENS_METRICS_PORT"
        assert ports[endpoint["port"]] == int(variables[setting])
        reference = {"name": secret["metadata"]["name"], "key": "MENS_METRICS_KEY"}
        assert endpoint["authorization"]["credentials"] == reference
        assert variables["MENS_METRICS_KEY"] == {"secretKeyRef": reference}


@pytest.mark.deploy
def test_service_and_ingress_do_not_lead_to_the_metrics(helm: Any, tmp_path: Path) -> None:
    documents = render(helm, tmp_path, {**MONITORED, "ingress": {"enabled": True, "host": "mens.internal"}}, *OPERATOR)
    for service in of(documents, "Service"):
        assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]


@pytest.mark.deploy
def test_cluster_without_the_operator_gets_the_dashboard_alone(helm: Any, tmp_path: Path) -> None:
    kinds = {document["kind"] for document in render(helm, tmp_path, MONITORED)}
    assert "ConfigMap" in kinds
    assert not kinds & {"PrometheusRule", "PodMonitor"}


@pytest.mark.deploy
def test_without_metrics_nothing_listens(helm: Any, tmp_path: Path) -> None:
    documents = render(helm, tmp_path, SEVERAL, *OPERATOR)
    assert not {document["kind"] for document in documents} & {"PrometheusRule", "PodMonitor"}
    assert not any(name.startswith("MENS_METRICS") for _, pod in pods(documents) for name in environment(pod))


@pytest.mark.deploy
def test_metrics_without_a_key_are_refused(helm: Any, tmp_path: Path) -> None:
    values = copy.deepcopy(MONITORED)
    values["secret"]["metricsKey"] = "short"
    done = Chart(helm, tmp_path).run("template", "mens", values=values)
    assert done.returncode
    assert "metricsKey" in done.stderr
