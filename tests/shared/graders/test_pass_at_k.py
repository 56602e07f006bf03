"""pass@k is the unbiased estimate over all answers, and never "any of k"."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.errors import Code, InvalidRequest
from shared.graders.grading import check_runnable, grade, make_sample
from shared.graders.pass_at_k import check_sampling, pass_at_k, samples_needed
from shared.graders.types import GRADER, Grader

IS_YES = {
    "type": "string_check",
    "name": "yes",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.a }}",
    "operation": "eq",
}


def make(k: int = 1, of: dict[str, Any] | None = None) -> Grader:
    mens = {"check": "pass_at_k", "k": k, "of": of or IS_YES}
    return GRADER.validate_python({"type": "python", "name": "p", "source": "", "mens": mens})


def answers(*texts: str) -> dict[str, Any]:
    return {**make_sample(texts[0]), "choices": [{"message": {"role": "assistant", "content": text}} for text in texts]}


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_it_is_the_share_of_subsets_in_which_one_passes(counts: tuple[int, int, int]) -> None:
    samples, passed, k = counts
    subsets = list(combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_it_is_never_any_of_k() -> None:
    assert pass_at_k(10, 1, 1) == pytest.approx(0.1)
    assert pass_at_k(10, 1, 5) == pytest.approx(0.5)
    assert pass_at_k(10, 1, 10) == 1
    # The paper's own way to compute it.
    assert pass_at_k(200, 40, 10) == pytest.approx(1 - math.prod(1 - 10 / rest for rest in range(161, 201)))
    for counts in ((3, 1, 4), (3, 4, 1), (3, 1, 0)):
        with pytest.raises(ValueError):
            pass_at_k(*counts)


def test_a_grader_estimates_from_all_answers() -> None:
    sample = answers("Yes", "No", "Yes", "No")
    assert grade(make(k=1), {"a": "Yes"}, sample).score == 0.5
    assert grade(make(k=2), {"a": "Yes"}, sample).score == pytest.approx(5 / 6)
    assert grade(make(k=1), {"a": "Yes"}, make_sample("Yes")).score == 1


def test_each_answer_is_its_own_sample() -> None:
    schema = {"type": "python", "source": "", "mens": {"check": "json_schema", "json_schema": {"type": "array"}}}
    assert grade(make(of=schema), {}, answers("[1]", "{", "[2]", "{}")).score == 0.5


def test_too_few_answers_are_said() -> None:
    with pytest.raises(InvalidRequest) as refused:
        grade(make(k=3), {"a": "Yes"}, answers("Yes", "Yes"))
    assert refused.value.code == Code.GRADER_INVALID, "the answer is not to blame"
    assert refused.value.message == "pass@3 needs at least 3 answers; the sample has 2."


def test_what_cannot_be_estimated_is_refused_before_anything_is_sampled() -> None:
    check_sampling(make(k=1), 1, 0)
    check_sampling(make(k=3), 5, 0.8)
    check_sampling(make(k=3), 5, None)
    both = GRADER.validate_python({
        "type": "multi", "graders": {"a": make(k=4).model_dump(exclude_none=True), "b": IS_YES}, "calculate_output": "a * b",
    })  # fmt: skip
    assert (samples_needed(both), samples_needed(make(k=2)), samples_needed(GRADER.validate_python(IS_YES))) == (
        4,
        2,
        1,
    )
    for grader, samples, temperature in ((make(k=3), 2, 1.0), (make(k=2), 4, 0.0), (both, 3, 1.0)):
        with pytest.raises(InvalidRequest) as refused:
            check_sampling(grader, samples, temperature)
        assert refused.value.code == Code.GRADER_INVALID
        assert refused.value.remedy


def test_what_it_is_of_is_validated_when_it_is_made() -> None:
    with pytest.raises(ValidationError, match="applies only to the check pass_at_k"):
        make(of=make().model_dump(exclude_none=True))
    with pytest.raises(ValidationError):
        make(k=0)
    with pytest.raises(InvalidRequest) as refused:
        check_runnable(make(of={"type": "python", "source": "", "mens": {"check": "compiles", "language": "cobol"}}))
    assert refused.value.code == Code.CHECKER_NOT_FOUND
