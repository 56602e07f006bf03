"""The harness's environment: one folder for each lock, which is complete or does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.evaluation.suites.environment import LOCK, environment_folder, install, python_of
from shared.errors import Code, NotFound, Unavailable


def test_every_package_of_the_lock_is_pinned_with_hashes() -> None:
    pins = [line for line in LOCK.read_text().splitlines() if line[:1].isalpha()]
    assert all("==" in pin and pin.endswith("\\") for pin in pins)
    assert any(pin.startswith("lm-eval==0.4.") for pin in pins)
    assert not any(pin.startswith(("torch==", "torchvision==", "nvidia-")) for pin in pins)


def test_another_lock_is_another_environment(tmp_path: Path) -> None:
    other = tmp_path / "other.lock"
    other.write_text("a==1\n")
    assert environment_folder(tmp_path) != environment_folder(tmp_path, other)
    with pytest.raises(NotFound) as missing:
        environment_folder(tmp_path, tmp_path / "none.lock")
    assert missing.value.code == Code.SUITES_NOT_INSTALLED
    assert missing.value.param == "lock"


def test_environment_that_is_missing_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as missing:
        python_of(tmp_path / "none")
    assert missing.value.code == Code.SUITES_NOT_INSTALLED
    assert "mens eval suites install" in missing.value.remedy


def test_failed_installation_leaves_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "bad.lock"
    lock.write_text("no-hash==1\n")
    folder = tmp_path / "suites" / "one"
    with pytest.raises(Unavailable) as failed:
        install(folder, lock)
    assert failed.value.code == Code.SUITES_INSTALL_FAILED
    assert "hash" in failed.value.message
    assert list(folder.parent.iterdir()) == []
