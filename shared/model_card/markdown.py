"""Markdown in which untrusted strings are never markup: cells, tables, quotations, and the front matter for the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from shared.artifacts.manifests import ParentRef

HUB_LICENSES = frozenset(
    {
        "agpl-3.0",
        "apache-2.0",
        "bigscience-openrail-m",
        "bsd-2-clause",
        "bsd-3-clause",
        "cc-by-4.0",
        "cc-by-nc-4.0",
        "cc-by-sa-4.0",
        "cc0-1.0",
        "gemma",
        "gpl-3.0",
        "lgpl-3.0",
        "llama2",
        "llama3",
        "llama3.1",
        "llama3.2",
        "llama3.3",
        "mit",
        "mpl-2.0",
        "openrail",
        "unlicense",
    }
)
"""Identifiers that the hub knows; any other licence is given as ``other`` with its name."""


def license_fields(license_: str | None) -> list[tuple[str, object]]:
    """Return the front matter's fields for a licence; empty if it is unknown."""
    if not license_:
        return []
    identifier = license_.strip().lower()
    return (
        [("license", identifier)]
        if identifier in HUB_LICENSES
        else [("license", "other"), ("license_name", one_line(license_))]
    )


def front_matter_of(fields: Sequence[tuple[str, object]]) -> str:
    """Return YAML for the hub. Strings are written as JSON, which is valid YAML."""
    lines = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields)
    return f"---\n{lines}---\n"


def tags(method: str) -> list[str]:
    """Return the front matter's tags of an adapter that was trained with a method, each once."""
    return list(dict.fromkeys(("lora", method, "mens")))


def inline(value: object) -> str:
    """Return any value as one line of plain Markdown: nothing in it is markup, HTML or a table's border."""
    text = one_line(str(value)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#]|^[-+])", r"\\\1", text)


def one_line(text: str) -> str:
    """Return printable characters only, and runs of white space as one space."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = ("", "")) -> str:
    """Return a Markdown table; every cell is escaped."""
    lines = ["| " + " | ".join(map(inline, row)) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def quotation(text: str) -> str:
    """Return a string unchanged in an indented code block: its lines stay lines, and nothing in it is markup."""
    lines = text.splitlines() or [""]
    printable = (
        "".join(character for character in line if character.isprintable() or character == "\t") for line in lines
    )
    return "".join(f"    {line.expandtabs(4)}\n" for line in printable)


def started_from(ancestors: Sequence[ParentRef]) -> str:
    """Return the section on the adapters that an adapter was continued from, its parent first; empty if it was not
    continued.
    """
    if not ancestors:
        return ""
    rows = [(ancestor.id, ancestor.step) for ancestor in ancestors]
    return f"\n## Started from\n\n{table(rows, ('adapter, the parent first', 'its steps'))}"
