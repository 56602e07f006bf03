"""The project files: licence, changelog, guide, templates and .env.example agree with the code and the documentation."""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: str = PROJECT["project"]["version"]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
ENV_EXAMPLE = (ROOT / ".env.example").read_text()
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the licence as apache.org publishes it."""
VERSIONS = {
    "api/main.py": r'^VERSION = "(.+)"',
    "deploy/helm/Chart.yaml": r'^(?:version|appVersion): "?([^"\n]+)',
    "docker-compose.yml": r"image: mens/\w+:([\d.]+)",
    "docs/images.md": r"mens/\w+:([\d.]+)",
    "deploy/helm/README.md": r"mens/\$tier:([\d.]+)",
}
"""Patterns of the version by file; `tests/deploy/test_dockerfiles.py` compares the labels of the images."""
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def undocumented(text: str) -> list[str]:
    """Variables of an environment file that are neither a setting in docs/settings.md nor a variable of Compose."""
    settings = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE))
    compose = set(re.findall(r"\$\{(\w+)", COMPOSE)) | {"COMPOSE_PROFILES"}
    return [name for name in re.findall(r"\b((?:MENS|COMPOSE)_\w+)", text) if name not in settings | compose]


# -- the licence --------------------------------------------------------------------------------------------------------


def test_licence_is_the_whole_text_that_the_project_names() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert PROJECT["project"]["license-files"] == ["LICENSE"]
    # A build backend refuses a licence in both places.
    assert not [entry for entry in PROJECT["project"]["classifiers"] if entry.startswith("License ::")]


# -- the version --------------------------------------------------------------------------------------------------------


def test_changelog_has_a_section_of_the_version() -> None:
    sections = re.findall(r"^## \[(.+?)\](?: - (.+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0][0] in {"Unreleased", VERSION}
    for name, date in sections:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d|Unreleased", date) or name == "Unreleased", name


@pytest.mark.parametrize("path", VERSIONS)
def test_version_is_the_same_everywhere(path: str) -> None:
    assert set(re.findall(VERSIONS[path], (ROOT / path).read_text(), re.MULTILINE)) == {VERSION}


# -- .env.example -------------------------------------------------------------------------------------------------------


def test_every_variable_of_the_example_is_documented() -> None:
    assert not undocumented(ENV_EXAMPLE)


def test_undocumented_variable_is_found() -> None:
    assert undocumented("#MENS_SERVING_GPUS=1\nMENS_SERVING_GPU=1\n# mens, MENS_API_KEY") == ["MENS_SERVING_GPUS"]


def test_example_has_what_compose_requires_and_its_defaults() -> None:
    """A value that is set is required; one behind a comment sign is Compose's default."""
    required = set(re.findall(r"\$\{(\w+):\?", COMPOSE))
    assert set(re.findall(r"^(\w+)=", ENV_EXAMPLE, re.MULTILINE)) == required | {"COMPOSE_PROFILES"}
    optional = dict(re.findall(r"^#(\w+)=(.*)$", ENV_EXAMPLE, re.MULTILINE))
    assert optional == dict(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE))


def test_example_has_no_secret() -> None:
    assert not re.findall(r"^\w+_(?:PASSWORD|SECRET|KEY)=.+$", ENV_EXAMPLE, re.MULTILINE)


# -- contributing, and the templates ------------------------------------------------------------------------------------


def test_every_make_target_of_the_guide_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in ("CONTRIBUTING.md", ".github/pull_request_template.md"):
        named = set(re.findall(r"(?:`|^)make ([a-z]+)", (ROOT / path).read_text(), re.MULTILINE))
        assert {"check", "test", "long"} <= named <= targets, path


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "config.yml"], ids=lambda form: form.stem)
def test_issue_form_is_one_that_the_site_takes(form: Path) -> None:
    read = yaml.safe_load(form.read_text())
    assert read.keys() <= {"name", "description", "title", "labels", "body"}
    assert {type(read[key]) for key in ("name", "description")} == {str}
    assert {part["type"] for part in read["body"]} <= FIELDS
    for part in read["body"]:
        assert part.keys() <= {"type", "id", "attributes", "validations"}
        assert part["attributes"]["value" if part["type"] == "markdown" else "label"]
        if part["type"] == "dropdown":
            options = part["attributes"]["options"]
            assert all(isinstance(option, str) for option in options)
            assert len(set(options)) == len(options)
    ids = [part["id"] for part in read["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids)


# -- types --------------------------------------------------------------------------------------------------------------


def test_marker_of_types_is_in_the_package() -> None:
    assert (ROOT / "shared" / "py.typed").exists()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["shared"]


# -- releases of Python -------------------------------------------------------------------------------------------------

VALIDATORS = {
    "AfterValidator",
    "BeforeValidator",
    "PlainValidator",
    "WrapValidator",
    "PlainSerializer",
    "WrapSerializer",
}


def validators_that_are_classes(source: str) -> list[str]:
    """Return the validators that pydantic gets and that are classes, by their names."""
    # Parsing every file would take seconds, and few have one.
    if not any(name in source for name in VALIDATORS):
        return []
    return [
        f"{node.lineno}: {argument}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in VALIDATORS
        for argument in map(ast.unparse, node.args[:1])
        if re.fullmatch(r"(?:\w+\.)*(?:_*[A-Z]\w*(?:\[.*\])?|dict|list|set|frozenset|tuple)", argument)
    ]


def test_pydantic_gets_functions_whose_signature_is_the_same_in_every_python() -> None:
    """Pydantic asks for a validator's signature, and that of a class differs: no plan could be made on 3.12."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench"}
    assert packages >= {"api", "shared", "worker", "serving"}
    sources = [path for name in packages for path in (ROOT / name).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): validators_that_are_classes(path.read_text()) for path in sources}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_class_as_a_validator_is_found() -> None:
    assert validators_that_are_classes("one = Annotated[dict, AfterValidator(FrozenDict[str])]") == [
        "1: FrozenDict[str]"
    ]
    assert not validators_that_are_classes("one = [AfterValidator(_freeze), BeforeValidator(lambda Name: Name)]")
