"""Budget of a run: its bounds, what requests have used, and what those in flight may use."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from corpus.generation.model_columns import GenerationBudget, Price
from corpus.generation.responses import FailedRequests, StoredResponse
from shared.errors import Code, Conflict


@dataclass(slots=True)
class Spending:
    """An amount of requests, of tokens, and of money at the prices of a recipe."""

    requests: int = 0
    tokens: int = 0
    money: float = 0.0

    def add(self, other: Spending, sign: int = 1) -> None:
        """Add an amount, or subtract it."""
        self.requests += sign * other.requests
        self.tokens += sign * other.tokens
        self.money += sign * other.money


class BudgetSpent(Exception):
    """The next request could exceed a bound of the budget."""

    def __init__(self, bound: str) -> None:
        super().__init__(bound)
        self.bound = bound

    def error(self, spent: Spending) -> Conflict:
        """Return the error of the run."""
        message = (
            f"The next request could exceed budget.{self.bound}; {spent.requests:,} requests and {spent.tokens:,} "
            "tokens were used."
        )
        return Conflict(
            Code.CORPUS_BUDGET_SPENT,
            message,
            remedy="Raise the bound in the recipe and run the command again: stored responses are not requested again.",
            param=f"budget.{self.bound}",
        )


class SpendingMeter:
    """Counts what requests use, and keeps it within the bounds. Used by many threads.

    Requests in flight count with the largest amount that they may use, so the bounds hold at every moment, provided
    that a server never counts more tokens for a prompt than it has bytes.

    Args:
        stored: use of earlier runs: their stored responses, and their requests without a response.
    """

    def __init__(
        self,
        budget: GenerationBudget,
        prices: Mapping[str, Price],
        stored: Iterable[StoredResponse | FailedRequests],
    ) -> None:
        self._budget, self._prices = budget, prices
        self.spent = Spending()
        self._reserved = Spending()
        self._changed = threading.Condition()
        for response in stored:
            self.spent.add(self.usage(response.name, response.prompt_tokens, response.answer_tokens, response.requests))

    def usage(self, name: str, prompt_tokens: int, answer_tokens: int, requests: int = 1) -> Spending:
        """Return the amount that a request to a model uses."""
        price = self._prices.get(name)
        return Spending(
            requests, prompt_tokens + answer_tokens, price.cost(prompt_tokens, answer_tokens) if price else 0.0
        )

    def reserve(self, most: Spending, *, again: bool = False) -> None:
        """Reserve the amount that a request may use; wait while requests in flight may still release enough for it.

        Args:
            again: whether it belongs to a request that is already in flight, which must not wait for itself.

        Raises:
            BudgetSpent: it could exceed a bound.
        """
        with self._changed:
            while bound := self._exceeded(most):
                if again or self._reserved.requests == 0:
                    raise BudgetSpent(bound)
                self._changed.wait()
            self._reserved.add(most)

    def settle(self, most: Spending, used: Spending) -> None:
        """Replace the amount reserved for a request by the amount that it used."""
        with self._changed:
            self._reserved.add(most, -1)
            self.spent.add(used)
            self._changed.notify_all()

    def _exceeded(self, most: Spending) -> str | None:
        for bound in ("requests", "tokens", "money"):
            limit = getattr(self._budget, bound)
            total = sum(getattr(usage, bound) for usage in (self.spent, self._reserved, most))
            if limit is not None and total > limit * (1 + 1e-12):
                return bound
        return None
