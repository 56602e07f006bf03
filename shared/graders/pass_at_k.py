"""pass@k: the probability that at least one of k answers passes.

It is not the same as "any of k": if 1 of 10 answers passes, "any of 10" is 1 but pass@1 is .1.
"""

from __future__ import annotations

import math

from shared.errors import Code, InvalidRequest
from shared.graders.types import Grader, MultiGrader, PassAtKCheck, PythonGrader


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of pass@k: one minus the share of k-subsets of the answers in which none passes.

    Source: Chen and others, "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374).

    Raises:
        ValueError: there are fewer answers than k, or fewer than passed answers.
    """
    if not (1 <= k <= samples and 0 <= passed <= samples):
        raise ValueError("pass@k needs k answers or more")
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def samples_needed(grader: Grader) -> int:
    """Return the number of answers to each prompt that a grader needs: its largest k; 1 for graders without pass@k."""
    if isinstance(grader, MultiGrader):
        return max(map(samples_needed, grader.graders.values()))
    check = grader.mens if isinstance(grader, PythonGrader) else None
    return check.k if isinstance(check, PassAtKCheck) else 1


def check_sampling(grader: Grader, samples: int, temperature: float | None) -> None:
    """Raise an error unless answers sampled like this can be graded; for an eval, call it before anything is sampled.

    Args:
        samples: answers to a prompt that are judged together.
        temperature: None for the server's default.

    Raises:
        InvalidRequest: ``GRADER_INVALID``: too few answers for a k, or k above 1 at temperature 0, where all answers
            are the same.
    """
    k = samples_needed(grader)
    if k > samples:
        together = "one answer" if samples == 1 else f"{samples} answers"
        message = f"The grader {grader.name!r} estimates pass@{k}, but it gets {together} per prompt."
        remedy = f"Set k to {samples}; pass@{k} of an eval's answers is what a policy's gate `pass_at_k` estimates."
        raise InvalidRequest(Code.GRADER_INVALID, message, remedy=remedy, param="mens.k")
    if k > 1 and temperature == 0:
        message = f"The grader {grader.name!r} estimates pass@{k} of answers at temperature 0, which are all the same."
        raise InvalidRequest(
            Code.GRADER_INVALID, message, remedy="Set k to 1, or a temperature above 0.", param="mens.k"
        )
