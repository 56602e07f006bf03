"""Similarity of two strings, from 0 to 1, by OpenAI's names of metrics.

OpenAI names the metrics but not their settings; docs/evaluation.md lists the settings chosen here. Words of BLEU, GLEU
and METEOR are separated by white space; the words of ROUGE are runs of a-z and 0-9 in lower case, as in its first
implementation.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from operator import mul

from rapidfuzz import fuzz, utils
from rapidfuzz.distance import LCSseq

from shared.errors import Code, InvalidRequest, TooLarge
from shared.graders.types import Metric

LONGEST = 100_000
LONGEST_OF = {"fuzzy_match": 10_000, "meteor": 10_000}
"""Limits of metrics whose time grows with the product of the lengths or faster: they take seconds at this length."""


def similarity(metric: Metric, text: str, reference: str) -> float:
    """Return the similarity of a string and its reference, by any metric but ``cosine``, which needs embeddings.

    Raises:
        InvalidRequest: ``GRADER_UNSUPPORTED``: ``cosine``; ``meteor`` without WordNet.
        TooLarge: ``GRADER_TEXT_TOO_LONG``.
    """
    longest = LONGEST_OF.get(metric, LONGEST)
    if max(len(text), len(reference)) > longest:
        message = (
            f"A string for {metric} has {max(len(text), len(reference))} characters; at most {longest} can be compared."
        )
        raise TooLarge(Code.GRADER_TEXT_TOO_LONG, message, remedy="Shorten it, or use rouge_l.")
    if metric == "cosine":
        raise no_embeddings()
    if metric.startswith("rouge_"):
        return _rouge(metric.removeprefix("rouge_"), text, reference)
    return _METRICS[metric](text, reference)


def _fuzzy_match(text: str, reference: str) -> float:
    return float(fuzz.WRatio(text, reference, processor=utils.default_process)) / 100


# nltk is imported when it is needed: it takes three quarters of a second.
def _bleu(text: str, reference: str) -> float:
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    words = text.split()
    if not words:
        return 0.0
    smoothing = SmoothingFunction().method1
    return float(sentence_bleu([reference.split()], words, smoothing_function=smoothing))


def _gleu(text: str, reference: str) -> float:
    from nltk.translate.gleu_score import sentence_gleu

    return float(sentence_gleu([reference.split()], text.split()))


def _meteor(text: str, reference: str) -> float:
    from nltk.translate.meteor_score import meteor_score

    try:
        return float(meteor_score([reference.split()], text.split()))
    except LookupError:
        message = "meteor needs WordNet, which is not installed on this machine."
        remedy = "Install it with `python -m nltk.downloader wordnet`, or use rouge_l."
        raise InvalidRequest(Code.GRADER_UNSUPPORTED, message, remedy=remedy, param="evaluation_metric") from None


def cosine(vector: Sequence[float], reference: Sequence[float]) -> float:
    """Return the cosine of the angle between two embeddings, from -1 to 1; 0 if one has length zero."""
    lengths = math.hypot(*vector) * math.hypot(*reference)
    return math.fsum(map(mul, vector, reference)) / lengths if lengths else 0.0


def no_embeddings() -> InvalidRequest:
    """Return the error of ``cosine`` without a model for embeddings."""
    return InvalidRequest(
        Code.GRADER_UNSUPPORTED,
        "cosine compares embeddings, but no embedding model is configured.",
        remedy="Use another metric or a score_model, or ask an operator to name a model in MENS_GRADER_EMBEDDINGS.",
        param="evaluation_metric",
    )


_METRICS: dict[str, Callable[[str, str], float]] = {
    "fuzzy_match": _fuzzy_match, "bleu": _bleu, "gleu": _gleu, "meteor": _meteor,
}  # fmt: skip


def _rouge(kind: str, text: str, reference: str) -> float:
    """Return the F-measure of ROUGE-N or ROUGE-L. Source: Lin, "ROUGE: a Package for Automatic Evaluation of Summaries"
    (2004).
    """
    words, reference_words = _rouge_words(text), _rouge_words(reference)
    if kind == "l":
        return _f_measure(LCSseq.similarity(words, reference_words), len(words), len(reference_words))
    text_grams, reference_grams = _n_grams(words, int(kind)), _n_grams(reference_words, int(kind))
    return _f_measure((text_grams & reference_grams).total(), text_grams.total(), reference_grams.total())


def _rouge_words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _n_grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _f_measure(common: int, actual: int, expected: int) -> float:
    return 2 * common / (actual + expected) if common else 0.0
