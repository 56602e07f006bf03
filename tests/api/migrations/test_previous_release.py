"""The previous release works on the current schema: its own tests of `shared/database/`, where all SQL is, pass on it.

`previous_release.tar.xz` has that release's `shared/` and those tests (docs/extending.md says how it is made). If those
tests create a database, the current migrations create it in a separate process, so that code of the two releases never
runs in the same process. `make test` includes `test_expand_only.py`, whose rule makes these tests pass.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from api.migrate import MIGRATIONS

ARCHIVE = Path(__file__).with_name("previous_release.tar.xz")
ROOT = Path(__file__).resolve().parents[3]
TESTS = ("test_leases.py", "test_keys.py", "names/test_aliases.py", "evaluation/test_evals.py")
"""They read and write jobs, events, adapters, files, aliases, keys and evals by every verb that ends a job; all others would take a minute."""
OF_MIGRATIONS = "migrat or downgrade"
"""Names of its tests of migrations, which compare with its own tables."""
AT_LEAST = 100
"""Tests on each database: fewer, and something was left out."""
SECONDS = 240
MIGRATE = f"""
import os, subprocess, sys

MIGRATIONS = None


def migrate(url, revision="head"):
    environment = os.environ | {{"PYTHONPATH": {str(ROOT)!r}, "MENS_DATABASE_URL": url}}
    subprocess.run([sys.executable, "-m", "api.migrate"], cwd={str(ROOT)!r}, env=environment, check=True)
"""
HEAD = """
from sqlalchemy import text


def test_schema_is_that_of_now(database):
    with database.read() as session:
        assert session.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == {!r}
"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The previous release's code, whose tests get databases of the schema of now."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "__init__.py").touch()
    (tmp_path / "api" / "migrate.py").write_text(MIGRATE)
    # Between tests it empties what the schema of now may protect from that.
    shutil.copy(ROOT / "tests" / "support" / "postgres.py", tmp_path / "tests" / "support")
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    (tmp_path / "tests" / "shared" / "database" / "test_head.py").write_text(HEAD.format(head))
    return tmp_path


@pytest.mark.long
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_tests_of_the_previous_release_pass_on_the_schema_of_now(kind: str, release: Path) -> None:
    tests = [f"tests/shared/database/{name}" for name in (*TESTS, "test_head.py")]
    # Options of the run that this test is part of are not those of the one that it starts.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "-k", f"{kind} and not ({OF_MIGRATIONS})"],
        cwd=release, env=environment | {"PYTHONPATH": str(release)}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= AT_LEAST
