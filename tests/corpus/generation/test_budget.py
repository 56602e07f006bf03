"""The limits of a budget hold with requests in flight; a request waits while those in flight may leave enough for it."""

from __future__ import annotations

import threading

import pytest

from corpus.generation.budget import BudgetSpent, Spending, SpendingMeter
from corpus.generation.model_columns import GenerationBudget, Price
from corpus.generation.responses import StoredResponse

PRICES = {"m": Price(input=1, output=10)}


def test_stored_responses_count() -> None:
    stored = StoredResponse(key="0" * 64, name="m", prompt_tokens=1_000, answer_tokens=100, requests=3)
    meter = SpendingMeter(GenerationBudget(requests=4), PRICES, [stored])
    assert (meter.spent.requests, meter.spent.tokens) == (3, 1_100)
    assert meter.spent.money == pytest.approx(0.002)
    meter.reserve(Spending(1))
    meter.settle(Spending(1), Spending(1))
    with pytest.raises(BudgetSpent, match="requests"):
        meter.reserve(Spending(1))


def test_a_request_waits_for_those_in_flight() -> None:
    meter = SpendingMeter(GenerationBudget(tokens=100), {}, [])
    meter.reserve(Spending(1, 80))
    reserved = threading.Event()

    def second() -> None:
        meter.reserve(Spending(1, 60))
        reserved.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert not reserved.wait(0.05)
    meter.settle(Spending(1, 80), Spending(1, 30))
    thread.join()
    assert reserved.is_set()
    meter.settle(Spending(1, 60), Spending(1, 60))
    with pytest.raises(BudgetSpent, match="tokens"):
        meter.reserve(Spending(1, 11))
    meter.reserve(Spending(1, 10))


def test_a_second_try_does_not_wait_for_itself() -> None:
    meter = SpendingMeter(GenerationBudget(requests=1), {}, [])
    meter.reserve(Spending(1))
    with pytest.raises(BudgetSpent):
        meter.reserve(Spending(1), again=True)
