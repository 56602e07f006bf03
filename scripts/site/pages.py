"""Write the folder that Sphinx reads: every page that the index links to, at the same path as in the repository.

A link therefore works on the site as on a forge. Three things are added: pages generated from the code, the list of the
decisions, and the navigation, which is the index itself (`docs/README.md`), section by section.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from scripts.site import commands, contract, http_api

ROOT = Path(__file__).resolve().parents[2]
INDEX = Path("docs", "README.md")
DECISIONS = Path("docs", "decisions")
GENERATED = {
    "commands.md": ("Commands", "every command of `mens`, with its arguments and options", commands.page),
    "contract.md": ("Contract", "every field of a fine-tune contract: type, default, range, flat key", contract.page),
    "http-api.md": ("HTTP API", "every route, with its parameters, body and answer", http_api.operations_page),
    "http-schemas.md": ("HTTP schemas", "every object of the HTTP API", http_api.schemas_page),
}
"""Pages generated from the code: title, description and the function that returns the text, by file name."""
REFERENCE = "Reference"
"""The section of the index that lists the generated pages."""
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)]*)?\)")
SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)


def write_pages(target: Path) -> None:
    """Replace the folder by the pages of the site."""
    shutil.rmtree(target, ignore_errors=True)
    for path in files_of_the_site():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            place.write_text(with_folder_indexes((ROOT / path).read_text()))
        else:
            shutil.copy(ROOT / path, place)
    for name, (_title, _description, page) in GENERATED.items():
        (target / "docs" / name).write_text(page())
    (target / DECISIONS / "index.md").write_text(decisions_page())
    (target / INDEX).write_text(with_navigation(with_folder_indexes((ROOT / INDEX).read_text())))


def files_of_the_site() -> set[Path]:
    """Return the pages of `docs/`, the README, and each file that one of them links to, by path in the repository."""
    pages = {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")} | {Path("README.md")}
    files: set[Path] = set()
    while pages:
        page = pages.pop()
        files.add(page)
        if page.suffix == ".md":
            pages |= linked_files(page) - files
    return files


def linked_files(page: Path) -> set[Path]:
    """Return the files that a page links to; Sphinx reports the links that lead nowhere."""
    paths = [(ROOT / page.parent / link).resolve() for link, _anchor in LINK.findall((ROOT / page).read_text())]
    return {path.relative_to(ROOT) for path in paths if path.is_file() and path.is_relative_to(ROOT)}


def with_folder_indexes(text: str) -> str:
    """Return a page whose links to the folder of the decisions lead to their list, as a forge shows a folder's files."""
    return re.sub(r"(\]\((?:[\w./-]*/)?decisions/)\)", r"\1index.md)", text)


def decisions_page() -> str:
    """Return the list of the decisions, the newest first, with its navigation."""
    paths = sorted((ROOT / DECISIONS).glob("[0-9]*.md"), reverse=True)
    titles = {path.name: path.read_text().partition("\n")[0].removeprefix("# ") for path in paths}
    links = "".join(f"- [{title}]({name})\n" for name, title in titles.items())
    return f"# Decisions\n\n{links}\n{toctree(titles)}"


def with_navigation(index: str) -> str:
    """Return the index with the generated pages in its section for reference, and each section's pages as navigation."""
    generated = "".join(f"- [{title}]({name}): {description}\n" for name, (title, description, _) in GENERATED.items())
    sections = [index[: index.index("\n## ") + 1]]
    placed: set[str] = set()  # Sphinx warns if the navigation contains a page twice.
    for title, body in SECTION.findall(index):
        lines = body.rstrip("\n") + "\n" + (generated if title == REFERENCE else "")
        pages = [link for link, _anchor in LINK.findall(lines) if link.endswith(".md") and link not in placed]
        placed.update(pages)
        sections.append(f"## {title}\n{lines}\n{toctree(pages, caption=title) if pages else ''}")
    return "\n".join(sections)


def toctree(pages: Iterable[str], caption: str = "") -> str:
    """Return Sphinx' directive for pages of the navigation, which is not shown in the page itself."""
    options = [":hidden:", ":maxdepth: 1", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *pages, "```", ""])


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
