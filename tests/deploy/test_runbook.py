"""docs/runbook.md: its commands name existing services, workloads and logs, and its severities are those of the alerts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from cli.standalone.programs import programs
from tests.support.helm_chart import MINIMAL, Chart, of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "runbook.md").read_text()
SECTIONS = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
RULES = yaml.safe_load((ROOT / "deploy" / "helm" / "rules" / "mens.yaml").read_text())


def cells(row: str) -> list[list[str]]:
    """The inline code of each cell of a table's row, by the row's first cell."""
    found = re.search(rf"^\| {row} \| (.+) \|$", PAGE, re.MULTILINE)
    assert found, row
    return [re.findall(r"`([^`]+)`", cell) for cell in found[1].split(" | ")]


def test_order_is_that_of_an_incident() -> None:
    assert SECTIONS == ["The first five minutes", "Severity", "Look", "Act", "Symptoms", "Alerts"]


def test_severities_are_those_of_the_alerts() -> None:
    alerts = [rule for group in RULES["groups"] for rule in group["rules"]]
    for severity in ("critical", "warning", "info"):
        row = re.search(rf"^\| {severity} \| .+$", PAGE, re.MULTILINE)
        assert row
        expected = {rule["alert"] for rule in alerts if rule["labels"]["severity"] == severity}
        assert set(re.findall(r"\[(Mens\w+)\]\(#\w+\)", row[0])) == expected


def test_names_of_the_processes_exist() -> None:
    standalone, compose, _chart = cells("their names")
    assert set(standalone) == set(programs())
    assert set(compose) <= set(COMPOSE["services"])


def test_compose_commands_name_services() -> None:
    named = re.findall(r"`docker compose (?:exec|restart|logs --tail 200) ([a-z]+)", PAGE)
    assert len(named) > 4
    assert set(named) <= set(COMPOSE["services"])


def test_folders_are_those_of_the_containers() -> None:
    paths = {path for _, path in re.findall(r"(exec \S+(?: --)?) df -h (/\S+?)`", PAGE)}
    assert paths == {"/var/lib/mens"}
    assert "worker:/var/lib/mens" in COMPOSE["services"]["worker"]["volumes"]
    assert "mountPath: /var/lib/mens\n" in (ROOT / "deploy/helm/templates/_helpers.tpl").read_text()


def test_kubectl_commands_name_workloads_of_the_chart(helm: Any, tmp_path: Path) -> None:
    documents = Chart(helm, tmp_path).render(MINIMAL)
    named = re.findall(r"deploy/([a-z-]+)", "".join(line for line in PAGE.splitlines() if "kubectl" in line))
    assert len(named) > 5
    assert set(named) <= {document["metadata"]["name"] for document in of(documents, "Deployment")}
    assert "mens-api" in {document["metadata"]["name"] for document in of(documents, "Service")}
