"""What the lock files pin."""

from __future__ import annotations

import re
from pathlib import Path

LOCKS = Path(__file__).resolve().parents[2] / "locks"


def pins(name: str) -> dict[str, str]:
    """Versions by package, as ``locks/{name}.lock`` pins them."""
    text = (LOCKS / f"{name}.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, flags=re.MULTILINE))


def without_hash(name: str) -> set[str]:
    """Packages of a lock of which any bytes would be taken."""
    entries = (LOCKS / f"{name}.lock").read_text().replace("\\\n", " ").splitlines()
    return {entry.partition("==")[0] for entry in entries if "==" in entry and "--hash=" not in entry}
