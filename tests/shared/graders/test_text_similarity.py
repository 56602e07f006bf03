"""Similarity metrics give what the named libraries give; the fixture names their versions and settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import Code, InvalidRequest, TooLarge
from shared.graders.text_similarity import LONGEST, LONGEST_OF, similarity
from shared.graders.types import Metric

PAIRS = json.loads((Path(__file__).with_name("golden") / "similarity.json").read_bytes())["pairs"]
COMPUTED = [metric for metric in get_args(Metric) if metric not in {"cosine", "meteor"}]


@pytest.mark.parametrize("metric", COMPUTED)
def test_it_is_what_the_named_library_gives(metric: Metric) -> None:
    found = [similarity(metric, pair["text"], pair["reference"]) for pair in PAIRS]
    assert found == pytest.approx([pair["scores"][metric] for pair in PAIRS], abs=1e-9)


@pytest.mark.parametrize("metric", COMPUTED)
@settings(max_examples=30, deadline=None)
@given(st.text(alphabet="ab c", max_size=40), st.text(alphabet="ab c", max_size=40))
def test_it_is_from_0_to_1_and_1_for_itself(metric: Metric, text: str, reference: str) -> None:
    assert 0 <= similarity(metric, text, reference) <= 1
    words = f"{text} a b c a b"
    assert similarity(metric, words, words) == pytest.approx(1)


def test_cosine_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="embeddings") as caught:
        similarity("cosine", "a", "b")
    assert (caught.value.code, caught.value.param) == (Code.GRADER_UNSUPPORTED, "evaluation_metric")


class NoSynonyms:
    """A WordNet of no words."""

    def synsets(self, _word: str) -> list[Any]:
        return []


def test_meteor_is_nltks_with_wordnet_and_refused_without(monkeypatch: pytest.MonkeyPatch) -> None:
    import nltk.translate.meteor_score as meteor

    def without_wordnet(*_: object) -> float:
        raise LookupError("Resource wordnet not found.")

    monkeypatch.setattr(meteor, "meteor_score", without_wordnet)
    with pytest.raises(InvalidRequest, match=r"nltk\.downloader wordnet") as caught:
        similarity("meteor", "a", "b")
    assert caught.value.code == Code.GRADER_UNSUPPORTED
    exact = meteor.single_meteor_score
    monkeypatch.setattr(
        meteor, "meteor_score", lambda references, words: exact(references[0], words, wordnet=NoSynonyms())
    )
    assert similarity("meteor", "the cats sat", "the cat sat") == pytest.approx(0.98148148, abs=1e-6)


@pytest.mark.parametrize(("metric", "longest"), [*LONGEST_OF.items(), ("rouge_l", LONGEST)])
def test_a_text_is_bounded(metric: Metric, longest: int) -> None:
    with pytest.raises(TooLarge) as caught:
        similarity(metric, "a", "b" * (longest + 1))
    assert caught.value.code == Code.GRADER_TEXT_TOO_LONG


def test_nltk_is_not_loaded_for_other_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "nltk"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nltk", ModuleType("nltk"))
    for metric in ("fuzzy_match", "rouge_1", "rouge_l"):
        similarity(metric, "a", "a")
