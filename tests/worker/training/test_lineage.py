"""Lineage: the code and packages that trained an adapter, in its manifest."""

from __future__ import annotations

from importlib.metadata import version

import worker.training.lineage
from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest
from worker.run_folder import ADAPTER_FOLDER
from worker.training.lineage import ROOT, code_digest, environment_digest, git_sha


def test_a_run_writes_its_code_and_packages(finished):
    manifest = AdapterManifest.model_validate_json((finished.run_dir / ADAPTER_FOLDER / MANIFEST_NAME).read_bytes())
    lineage = manifest.lineage
    assert lineage.code_digest == code_digest(ROOT)
    assert lineage.code_commit == git_sha({})
    assert lineage.environment_digest == environment_digest()
    assert (lineage.packages["peft"], lineage.packages["torch"]) == (version("peft"), version("torch"))


def test_the_code_digest_is_of_every_source_and_of_nothing_else(tmp_path):
    for name in ("shared/a.py", "worker/training/b.py", "api/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    digest = code_digest.__wrapped__
    before = digest(tmp_path)
    (tmp_path / "api" / "c.py").write_text("x = 2\n")
    (tmp_path / "shared" / "a.pyc").write_bytes(b"compiled")
    assert digest(tmp_path) == before
    (tmp_path / "worker" / "training" / "b.py").write_text("x = 2\n")
    assert digest(tmp_path) != before


def test_another_package_is_another_environment(monkeypatch):
    class Installed:
        def __init__(self, name, number):
            self.name, self.version = name, number

    def of(*packages):
        monkeypatch.setattr(worker.training.lineage, "distributions", lambda: [Installed(*one) for one in packages])
        return environment_digest.__wrapped__()

    torch, peft = ("torch", "2.13.0"), ("peft", "0.21.2")
    assert of(torch, peft, ("mens", "0.1.0")) == of(peft, torch, ("mens", "0.2.0")) != of(torch, ("peft", "0.21.3"))
    assert of(("Typing_Extensions", "4")) == of(("typing-extensions", "4"))


def test_the_commit_is_the_operators_word_or_the_checkouts_or_none(monkeypatch):
    assert git_sha({"MENS_GIT_SHA": "abc123"}) == "abc123"
    monkeypatch.setattr(worker.training.lineage, "_checked_out", lambda _root: "def456")
    assert git_sha({}) == "def456"
    monkeypatch.setattr(worker.training.lineage, "_checked_out", lambda _root: None)
    assert git_sha({}) is None  # an editable installation has no commit


def test_a_folder_that_is_not_a_checkout_has_no_commit(tmp_path):
    assert worker.training.lineage._checked_out(tmp_path) is None
    (tmp_path / ".git").mkdir()
    assert worker.training.lineage._checked_out(tmp_path) is None
