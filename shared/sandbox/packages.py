"""Packages imported before a grader's code runs, so that no item waits for them. Uninstalled ones are skipped."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from contextlib import suppress

PACKAGES = frozenset(
    [
        "numpy",
        "scipy",
        "sympy",
        "pandas",
        "rapidfuzz",
        "sklearn",
        "rouge_score",
        "deepdiff",
        "jsonschema",
        "pydantic",
        "yaml",
        "nltk",
        "sqlparse",
        "rdkit",
        "skbio",
        "ast_grep_py",
        "regex",
        "jsonschema_rs",
    ]
)
"""Packages of OpenAI's image, by their import names, and two that Mens' own checks use."""
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)*)", re.MULTILINE)


def named_packages(source: str) -> list[str]:
    """Return those of these packages that a source seems to import. It is not compiled, because it may be hostile."""
    return sorted({match[1] for match in _IMPORT.finditer(source)} & PACKAGES)


def named_modules(source: str) -> list[str]:
    """Return those of these packages' modules that a source seems to import."""
    return sorted({match[1] + match[2] for match in _IMPORT.finditer(source) if match[1] in PACKAGES and match[2]})


def import_all(names: Iterable[str]) -> None:
    """Import the modules that are installed. A failed import fails again, with its reason, in the grader."""
    for name in names:
        with suppress(Exception, SystemExit):
            importlib.import_module(name)
