"""The site of `make docs`: its pages, its navigation, and a strict build."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts.site.pages import (
    GENERATED,
    ROOT,
    decisions_page,
    files_of_the_site,
    with_folder_indexes,
    with_navigation,
    write_pages,
)
from tests.system.fetched import environment

OPTIONS = re.findall(r"-m sphinx (.+) \$\(SITE\)/source", (ROOT / "Makefile").read_text())[0].split()
"""Options of the build in the Makefile, with the folder of the configuration."""
INDEX = """# Documentation

Words.

## Tutorial

- [First](first.md): words.

## Reference

- [Settings](settings.md), [logs](logs.md#format): words.

## Answers

- [One](first.md#one) and [another](logs.md#another).
"""


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [str(environment("docs")), "-m", "sphinx", *OPTIONS, str(source), str(target)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)


def test_site_has_the_pages_and_the_files_that_they_link_to() -> None:
    files = files_of_the_site()
    assert {Path("README.md"), Path("docs/jobs.md"), Path("bench/README.md"), Path("LICENSE")} <= files
    assert Path("docs/decisions/0049-migrations-only-expand.md") in files
    assert not [path for path in files if path.suffix == ".py"]


def test_index_has_every_page_once() -> None:
    links = re.findall(r"^- \[|\]\(([^)#]+\.md)\)", (ROOT / "docs" / "README.md").read_text(), re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(link for link in links if link in pages) == sorted(pages)


def test_sections_of_the_index_are_the_navigation() -> None:
    text = with_navigation(INDEX)
    assert text.startswith("# Documentation\n\nWords.\n")
    trees = re.findall(r"```\{toctree\}\n:hidden:\n:maxdepth: 1\n:caption: (\w+)\n\n(.*?)\n```", text, re.DOTALL)
    assert dict(trees) == {"Tutorial": "first.md", "Reference": "\n".join(["settings.md", "logs.md", *GENERATED])}


def test_link_to_the_folder_of_decisions_leads_to_their_list() -> None:
    assert with_folder_indexes("[a](decisions/), [b](docs/decisions/)") == (
        "[a](decisions/index.md), [b](docs/decisions/index.md)"
    )
    assert "](0049-migrations-only-expand.md)\n" in decisions_page()


@pytest.mark.network
@pytest.mark.timeout(900)
def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    write_pages(tmp_path / "source")
    done = build(tmp_path / "source", tmp_path / "html")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "html" / "index.html").exists()
    pages = {name.replace(".md", ".html") for name in (*GENERATED, "first-day.md", "errors.md")}
    assert pages <= {path.name for path in (tmp_path / "html" / "docs").iterdir()}


@pytest.mark.network
def test_broken_link_anchor_and_unlisted_page_fail_the_build(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "docs"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("# Index\n\n[a](missing.md) [b](other.md#missing) [c](other.md#there)\n")
    (folder / "other.md").write_text("# Other\n\n## There\n")
    done = build(tmp_path / "source", tmp_path / "html")
    assert done.returncode == 1
    for warning in ("'missing.md'", "'missing'", "other.md: WARNING: document isn't included in any toctree"):
        assert warning in done.stderr
    assert "there" not in done.stderr
