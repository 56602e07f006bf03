"""Contents of the lock files."""

from __future__ import annotations

import re
from pathlib import Path

LOCKS = Path(__file__).resolve().parents[2] / "locks"


def pins(name: str) -> dict[str, str]:
    """Versions by package, as pinned in ``locks/{name}.lock``."""
    text = (LOCKS / f"{name}.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, flags=re.MULTILINE))


def without_hash(name: str) -> set[str]:
    """Packages of a lock that have no digest."""
    entries = (LOCKS / f"{name}.lock").read_text().replace("\\\n", " ").splitlines()
    return {entry.partition("==")[0] for entry in entries if "==" in entry and "--hash=" not in entry}
