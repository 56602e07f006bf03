"""The documentation: the settings, tests, commands, paths and links that it names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from api.routes.jobs import CreateFinetune
from api.settings import ApiSettings
from cli.commands.bases.tiny import TINY_LEARNING_RATE
from cli.lazy_commands import load
from cli.main import ALIASES, PLACES
from serving.settings import ServingSettings
from shared.contract.auto_hyperparameters import auto_exec
from shared.contract.field_names import flat_names
from worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PROJECT_PAGES = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
DOCS = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in PROJECT_PAGES)])
FOLDERS = (
    "api",
    "bench",
    "cli",
    "corpus",
    "deploy",
    "docs",
    "examples",
    "locks",
    "openai_migration",
    "scripts",
    "serving",
    "shared",
    "tests",
    "worker",
)
DERIVED = {"database_url", "git_sha"}
"""Settings whose default the page has in words."""
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def described_default(field: FieldInfo) -> str | None:
    """A setting's default as docs/settings.md has it; None if it is derived when a process starts."""
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Path):
        return None
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, list):
        default = ",".join(default)
    return f"`{default}`" if default not in (None, "", {}, SecretStr("")) else "–"  # noqa: RUF001


@pytest.mark.parametrize("settings", [ApiSettings, WorkerSettings, ServingSettings])
def test_every_setting_is_documented(settings: type[BaseSettings]) -> None:
    page = (ROOT / "docs" / "settings.md").read_text().partition("\n## Command line\n")[0]
    rows = {row[0]: row for row in re.findall(r"^\| `MENS_(\w+)` \| (.+?) \| (.+) \|$", page, re.MULTILINE)}
    for name, field in settings.model_fields.items():
        _, default, description = rows[name.upper()]
        assert field.description, name
        assert field.description in description
        if name not in DERIVED and (expected := described_default(field)):
            assert default == expected, name


@pytest.mark.parametrize(
    ("page", "rows"), [("original-defects.md", 35), ("complaints.md", 15), ("faults.md", 43), ("threat-model.md", 36)]
)
def test_every_row_names_tests_that_exist(page: str, rows: int) -> None:
    table = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| ")][1:]
    assert len(table) == rows
    for row in table:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        # `tests/system/test_fault_verdicts.py` holds that each trial of the page exists, and each that exists is on the page.
        assert named or (page == "faults.md" and row.endswith("` |") and " | trial `" in row), row
        assert not [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`", README)) <= targets


def test_the_readmes_contract_is_what_mens_train_makes() -> None:
    """For a file of the size of the example's; the contract's own defaults teach the tiny base nothing."""
    found = re.search(r"/v1/jobs -d \\\n\s*'(\{.*?\})'$", README, re.MULTILINE | re.DOTALL)
    assert found
    contract = CreateFinetune.model_validate_json(found[1]).contract
    rows = len((ROOT / "examples/support.jsonl").read_text().splitlines())
    chosen = contract.exec.model_dump(include=contract.exec.model_fields_set)
    assert (contract.model.hf_repo, chosen) == ("mens-tiny", auto_exec(rows, TINY_LEARNING_RATE))


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *DOCS]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.stem[:4])
def test_every_decision_has_the_parts_and_ends_with_a_line_to_quote(page: Path) -> None:
    number, lines = page.name[:4], page.read_text().splitlines()
    beginnings = [f"# {number}: ", "**Context.**", "**Decision.**", "> "]
    places = [next((at for at, line in enumerate(lines) if line.startswith(begin)), -1) for begin in beginnings]
    assert places[0] == 0 and places[-1] == len(lines) - 1, "the title is the first line, and the quote the last one"
    assert -1 not in places and places == sorted(places), dict(zip(beginnings, places, strict=True))


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    quoted = re.findall(r"`([^`\s]+/[^`\s]*)`", page.read_text())
    paths = [path.partition(":")[0] for path in quoted if path.partition("/")[0] in FOLDERS]
    assert not [path for path in paths if not any(ROOT.glob(path))]


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_every_module_and_class_exists(page: Path) -> None:
    text = page.read_text()
    modules = [name for name in re.findall(r"python -m ([\w.]+)", text) if name.partition(".")[0] in FOLDERS]
    for path in (ROOT / name.replace(".", "/") for name in modules):
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), path
    if names := set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", text)):
        sources = [path.read_text() for tier in FOLDERS for path in (ROOT / tier).rglob("*.py")]
        assert not [name for name in names if not any(f"class {name}" in source for source in sources)]


def commands_in(text: str) -> Iterator[str]:
    """What follows ``mens`` in a page's inline code, and in the lines of its blocks that are commands."""
    for block in re.findall(BLOCK, text):
        for line in re.findall(r"^[ ]*(?:\$ )?(?:\S*/)?mens ([a-z].*)", block.replace("\\\n", " "), re.MULTILINE):
            yield re.split(r"\s#|[|;&>]", line)[0]
    for code in re.findall(r"`([^`]+)`", re.sub(BLOCK, "", text)):
        yield from re.findall(r"^(?:\S*/)?mens ([a-z].*)", " ".join(code.split()))


def unknown_parts(command: str) -> list[str]:
    """The words of a command that `mens` does not know: its name, or options of it."""
    name, *words = command.split()
    name, *words = *ALIASES.get(name, (name,)), *words
    place = next((place for place in PLACES if place.name == name), None)
    if place is None:
        return [name]
    found = load(place)
    while getattr(found, "commands", None) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in found.commands:
            return [name]
        found = found.commands[name]
    known = {"--help"} | {option for param in found.params for option in (*param.opts, *param.secondary_opts)}
    if place.takes_unknown_options:
        known |= {f"--{name.replace('_', '-')}" for name in flat_names()}
    return [option for option in re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", " ".join(words)) if option not in known]


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_every_command_and_option_exists(page: Path) -> None:
    faults = {command: unknown_parts(command) for command in commands_in(page.read_text())}
    assert not {command: unknown for command, unknown in faults.items() if unknown}


def test_commands_that_do_not_exist_are_found() -> None:
    text = "`mens\nadapters import`\n```\n$ mens train F --model M --rnk 3 --alpha 4 # tune\n.venv/bin/mens base tiny | cat\n```\n"
    assert [unknown_parts(command) for command in commands_in(text)] == [["--rnk"], ["tiny"], ["adapters"]]
    assert unknown_parts("jobs list --json [--limit N]") == []


BRANCH_OF_A_GPU = re.compile(
    r'torch\.cuda\.|is_cuda|[=!]= "(?:cuda|cpu)"|serving_device|find_gpus|query_gpus|cuda:nccl', re.MULTILINE
)


def test_every_file_with_a_branch_for_gpus_is_on_their_page_with_its_tests() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    files = [
        str(path.relative_to(ROOT))
        for folder in ("worker", "serving", "shared/gpus")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if BRANCH_OF_A_GPU.search(path.read_text())
    ]
    assert len(files) > 20
    assert not [file for file in files if f"`{file}`" not in page]
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"def {name}" not in (ROOT / path).read_text()
    ]
    assert not missing
