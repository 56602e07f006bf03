"""The documentation is whole: every setting, every module, every command, every decision."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from api.settings import ApiSettings
from serving.settings import ServingSettings
from worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
TIERS = ("api", "worker", "worker/training", "serving", "shared", "cli")


@pytest.mark.parametrize("settings", [ApiSettings, WorkerSettings, ServingSettings])
def test_every_setting_is_documented(settings: type[BaseSettings]) -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    for name, field in settings.model_fields.items():
        assert f"| `MENS_{name.upper()}` |" in page
        assert field.description, name
        assert field.description in page


@pytest.mark.parametrize("tier", TIERS)
def test_every_module_is_in_the_readme(tier: str) -> None:
    modules = [path.name for path in (ROOT / tier).glob("*.py") if path.name != "__init__.py"]
    assert not [name for name in modules if name not in README]


@pytest.mark.parametrize(("page", "rows"), [("original-defects.md", 28), ("complaints.md", 15)])
def test_every_row_names_tests_that_exist(page: str, rows: int) -> None:
    table = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| ")][1:]
    assert len(table) == rows
    for row in table:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        assert not [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`", README)) <= targets


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_decision_has_a_line_to_quote() -> None:
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        assert re.search(r"^> ", page.read_text(), re.MULTILINE), page.name
