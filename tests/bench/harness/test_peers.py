"""The peers' environment: the versions that its lock pins, and the message if it cannot be installed."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from bench.harness import peers
from bench.harness.command import PeerMissing
from tests.support.locks import pins


def test_lock_pins_the_versions_that_the_development_environment_has():
    ours, theirs = pins("cpu"), pins("bench")
    assert {name: ours[name] for name in theirs if name in ours} == {
        name: wanted for name, wanted in theirs.items() if name in ours
    }


def test_lock_has_no_package_of_the_trainer():
    assert not set(pins("bench")) & set(pins("worker"))


def test_environment_that_has_the_lock_is_used_as_it_is(monkeypatch, tmp_path):
    lock = tmp_path / "bench.lock"
    lock.write_text(f"pytest=={version('pytest')}\n")
    monkeypatch.setattr(peers, "LOCK", lock)
    monkeypatch.setattr(peers, "_install", pytest.fail)
    assert peers.peers_python() == Path(sys.executable)


@pytest.mark.exhaustive
def test_peers_that_cannot_be_installed_are_named(monkeypatch, tmp_path):
    lock = tmp_path / "bench.lock"
    lock.write_text("no-such-trainer==1.0\nno-such-parser==2.0\n")
    monkeypatch.setattr(peers, "LOCK", lock)
    monkeypatch.setattr(peers, "FOLDER", tmp_path / "venv")
    monkeypatch.setattr(peers, "PYTHON", tmp_path / "venv" / "bin" / "python")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    with pytest.raises(PeerMissing, match=r"not installed: no-such-trainer, no-such-parser\. `.* pip .*install"):
        peers.peers_python()


def test_installed_module_is_required_silently():
    peers.require("json", "pytest")


def test_missing_modules_are_named():
    with pytest.raises(PeerMissing, match=r"not installed: no_such_one, no_such_other\. `make install`"):
        peers.require("no_such_one", "json", "no_such_other")


def test_peer_without_a_lock_is_named_with_its_install_command(monkeypatch, tmp_path):
    lock = tmp_path / "bench.lock"
    lock.write_text("")
    monkeypatch.setattr(peers, "LOCK", lock)
    with pytest.raises(PeerMissing, match=r"not installed: no_such_module.*install no_such_module"):
        peers.peers_python("no_such_module")
