"""An installation and a fake OpenAI for the tests of the migration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cli_fixtures import commands_built_once, installation, nothing_of_an_earlier_command
from tests.support.fake_openai import KEY, FakeOpenAI, ServedOpenAI, serve_fake_openai

__all__ = ["commands_built_once", "installation", "nothing_of_an_earlier_command", "openai"]


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedOpenAI]:
    """A fake OpenAI, to which commands of this process are pointed, with the first project's key."""
    fake = FakeOpenAI()
    with serve_fake_openai(fake) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield ServedOpenAI(fake, url)
