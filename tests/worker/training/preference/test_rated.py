"""Rated answers: partners of other prompts, mismatched chats, and micro-batches within the budget."""

from __future__ import annotations

import numpy as np
import pytest

from worker.training.data.prepared import Row
from worker.training.preference.rated import RatedAnswer, mismatch, no_answers, partners, rated_batches


def row(length: int, learnt: int, first: int = 0) -> Row:
    weights = np.zeros(length, np.float32)
    weights[length - learnt :] = 1
    return Row(1, np.arange(first, first + length, dtype=np.uint32), weights, 5, 1.0)


ANSWERS = [RatedAnswer(2 * number, row(10 + number, 3), number % 2 == 0, row(6, 2)) for number in range(9)]


@pytest.mark.parametrize("prompts", ["abcdefgh", "aabbccdd", "aaaabbcd", "aabbbccc"])
def test_partners_are_a_permutation_of_rows_with_other_prompts(prompts: str) -> None:
    names = [letter.encode() for letter in prompts]
    found = partners(names, [np.arange(8)]).tolist()
    assert sorted(found) == list(range(8))
    assert all(names[number] != names[partner] for number, partner in enumerate(found))


@pytest.mark.parametrize("prompts", ["aaaa", "aaab"])
def test_with_too_few_prompts_no_row_is_its_own_partner(prompts: str) -> None:
    found = partners([letter.encode() for letter in prompts], [np.arange(4)])
    assert all(number != partner for number, partner in enumerate(found.tolist()))


def test_each_part_has_partners_of_its_own() -> None:
    parts = [np.array([5, 0, 3]), np.array([1, 2]), np.array([4]), np.array([], np.int64)]
    found = partners([bytes([number]) for number in range(6)], parts)
    for part in parts:
        assert sorted(found[part].tolist()) == sorted(part.tolist())


def test_a_mismatched_chat_has_the_prompt_and_the_other_answer() -> None:
    one, other = row(5, 2), row(7, 3, first=20)
    found = mismatch(one, other, 7)
    assert found.ids.tolist() == [0, 1, 2, 24, 25, 26]
    assert found.weights.tolist() == [0, 0, 0, 1, 1, 1]
    assert mismatch(one, other, 4).ids.tolist() == [2, 24, 25, 26]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("budget", [1, 40, 100, 1_000])
def test_every_answer_is_in_one_micro_batch(budget: int, packed: bool) -> None:
    batches = rated_batches(ANSWERS, budget, pad_token=0, packed=packed)
    assert sorted(place for batch in batches for place in batch.places.tolist()) == list(range(0, 18, 2))
    for batch in batches:
        assert batch.size <= max(budget, 18)
        assert batch.is_good.tolist() == [place % 4 == 0 for place in batch.places.tolist()]
        assert len(batch.chats.targets) == batch.lengths.sum() == 3 * batch.target_count
        assert batch.weight_sum == batch.target_count


def test_the_mismatched_answer_has_the_next_place() -> None:
    other = ANSWERS[3].mismatched()
    assert (other.place, other.lengths, other.is_good) == (7, (6,), False)


def test_a_process_without_answers_has_an_empty_batch() -> None:
    assert (no_answers().weight_sum, no_answers().target_count, no_answers().size) == (0.0, 0, 1)
