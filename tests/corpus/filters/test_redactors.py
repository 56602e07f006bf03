"""Redactors by name: built-in ones, files of rules, and the example of docs/extending.md as an installed package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corpus.filters.redactors import Redactors, installed_redactors
from shared.errors import Code, MensError

ROOT = Path(__file__).resolve().parents[3]
RECIPE = (ROOT / "docs" / "extending.md").read_text().partition("## A redactor")[2]
BROKEN = """
from corpus.filters.redacted import Redacted

class Raising:
    def __init__(self, key): pass
    def redact(self, texts): raise ValueError(texts[0])

class Losing(Raising):
    def redact(self, texts): return [Redacted(text) for text in texts[1:]]
"""


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's example, and two broken redactors, as an installed package."""
    block = re.search(r"```python\n(.*?)```", RECIPE, re.DOTALL)
    assert block
    entry = re.search(r'^#   customers = "(.*)"$', block[1], re.MULTILINE)
    assert entry
    (tmp_path / "customer_redactor.py").write_text(block[1])
    (tmp_path / "broken_redactors.py").write_text(BROKEN)
    information = tmp_path / "customer_redactor-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: customer-redactor\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        f"[mens.redactors]\ncustomers = {entry[1]}\nraising = broken_redactors:Raising\nlosing = broken_redactors:Losing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_redactors_follow_each_other_and_their_counts_are_added(tmp_path: Path) -> None:
    rules = tmp_path / "people.rules"
    rules.write_text("Ann Lee => <PERSON>\n")
    redactors = Redactors(["patterns", str(rules)], b"key")
    result = redactors.redact(["Ann Lee, ann@example.org", "nothing", "Ann Lee and Ann Lee"])
    assert re.fullmatch(r"<PERSON>, <EMAIL_[0-9a-f]{4}>", result.texts[0])
    assert result.texts[1:] == ["nothing", "<PERSON> and <PERSON>"]
    assert result.counts == {0: {"EMAIL": 1, "RULE": 1}, 2: {"RULE": 2}}
    assert list(redactors.digests) == [str(rules)]
    rules.write_text("Ann Lee => <NAME>\n")
    assert Redactors(["patterns", str(rules)], b"key").digests != redactors.digests


def test_key_is_drawn_if_it_is_missing() -> None:
    first, second = Redactors(["patterns"]), Redactors(["patterns"])
    texts = ["ann@example.org"] * 2
    assert len(set(first.redact(texts).texts)) == 1
    assert first.redact(texts) != second.redact(texts)


def test_unknown_redactor_is_named_with_those_that_exist() -> None:
    for name, word in (("presidio", "presidio"), ("./absent.rules", "absent.rules")):
        with pytest.raises(MensError, match=word) as failed:
            Redactors([name])
        assert failed.value.code == Code.CORPUS_REDACTOR_UNKNOWN
        assert "patterns" in str(failed.value.message) + str(failed.value.remedy)


@pytest.mark.usefixtures("plug_in")
def test_plug_in_is_found_by_its_entry_point() -> None:
    assert installed_redactors() == ["customers", "losing", "patterns", "raising"]
    result = Redactors(["customers", "patterns"], b"key").redact(["C-12345 wrote from ann@example.org"])
    assert re.fullmatch(r"<CUSTOMER> wrote from <EMAIL_\w{4}>", result.texts[0])
    assert result.counts == {0: {"CUSTOMER": 1, "EMAIL": 1}}


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize(("name", "reason"), [("raising", "it raised ValueError"), ("losing", "0 results for 1 texts")])
def test_failing_redactor_does_not_quote_the_text(name: str, reason: str) -> None:
    with pytest.raises(MensError, match=reason) as failed:
        Redactors([name], b"key").redact(["ann@example.org"])
    assert failed.value.code == Code.CORPUS_REDACTOR_FAILED
    assert "ann" not in repr(failed.value)
    # A traceback shows neither cause nor context, whose message quotes the text.
    assert failed.value.__cause__ is None
    assert failed.value.__context__ is None or failed.value.__suppress_context__
