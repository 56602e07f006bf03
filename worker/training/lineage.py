"""Provenance of this process: version, commit and source digest of its code, and the installed packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from pathlib import Path

from shared.artifacts.lineage import Lineage
from shared.hashing import digest_file, digest_json

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("shared", "worker")
GIT_SHA_VARIABLE = "MENS_GIT_SHA"
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "tokenizers", "safetensors", "numpy")
"""Packages that a result depends on."""


def lineage() -> Lineage:
    """Return the lineage of this process's training."""
    return Lineage(
        code_version=code_version(),
        code_commit=git_sha(os.environ),
        code_digest=code_digest(ROOT),
        environment_digest=environment_digest(),
        packages=dict(package_versions()),
    )


def code_version() -> str:
    """Return the version of Mens; ``source`` if it runs without being installed."""
    try:
        return version("mens")
    except PackageNotFoundError:
        return "source"


@cache
def code_digest(root: Path) -> str:
    """Return the SHA-256 over the canonical JSON of path → SHA-256 of the sources in ``shared/`` and ``worker/``."""
    files = (path for folder in SOURCES for path in (root / folder).rglob("*.py"))
    return digest_json({path.relative_to(root).as_posix(): digest_file(path) for path in files})


@cache
def environment_digest() -> str:
    """Return the SHA-256 over the canonical JSON of name → version of every installed package except Mens itself."""
    versions = {re.sub(r"[-_.]+", "-", installed.name).lower(): installed.version for installed in distributions()}
    return digest_json({name: number for name, number in versions.items() if name != "mens"})


@cache
def package_versions() -> Mapping[str, str]:
    """Return versions of the packages that a result depends on; missing packages are left out."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def git_sha(environment: Mapping[str, str]) -> str | None:
    """Return the commit of the running code: from the operator's setting, or else the checkout, or else pip's record;
    None if unknown.
    """
    if stated := environment.get(GIT_SHA_VARIABLE) or _checked_out(ROOT):
        return stated
    try:
        noted = json.loads(distribution("mens").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    commit = noted.get("vcs_info", {}).get("commit_id")
    return str(commit) if commit else None


@cache
def _checked_out(root: Path) -> str | None:
    """Return the commit of a git checkout; None if the code is not in one, or git is missing."""
    if not (root / ".git").exists():
        return None
    try:
        # A minute, for busy machines: the commit is part of the adapter's digest, so without it equal runs would differ.
        completed = subprocess.run(
            ["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip()
