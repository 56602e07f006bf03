"""Subjects of the newest commits have the form that CONTRIBUTING states."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEWEST = 30
"""Largest number of commits that are checked; older ones cannot be changed."""
LONGEST = 72


def git(*arguments: str) -> str | None:
    """Return the output of a git command in the repository; None if it failed, or if git is not installed."""
    try:
        done = subprocess.run(["git", *arguments], check=False, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def faults_of(subject: str) -> list[str]:
    """Return the rules that a subject breaks."""
    rules = {
        f"longer than {LONGEST} characters": len(subject) > LONGEST,
        "does not begin with a capital letter": not subject[:1].isupper(),
        "ends with a full stop": subject.endswith("."),
    }
    return [rule for rule, is_broken in rules.items() if is_broken]


def test_subjects_since_the_last_tag_have_the_form() -> None:
    if (top := git("rev-parse", "--show-toplevel")) is None or Path(top).resolve() != ROOT:
        pytest.skip("the source has no git history")
    last_tag = git("describe", "--tags", "--abbrev=0")
    commits = f"{last_tag}..HEAD" if last_tag else "HEAD"
    subjects = (git("log", "--no-merges", f"-{NEWEST}", "--format=%s", commits) or "").splitlines()
    assert subjects or last_tag
    assert not {subject: faults for subject in subjects if (faults := faults_of(subject))}


@pytest.mark.parametrize(
    ("subject", "count"),
    [
        ("Refuse a base whose tokenizer is missing", 0),
        ("K" * LONGEST, 0),
        ("K" * (LONGEST + 1), 1),
        ("Refuse a base.", 1),
        ("refuse a base", 1),
        ("", 1),
        (f"{'é' * LONGEST}.", 3),
    ],
)
def test_faults_of_subjects_are_found(subject: str, count: int) -> None:
    assert len(faults_of(subject)) == count
