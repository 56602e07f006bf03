"""Row filters: choose the rows to train on, by their metadata. One rule for planner, worker and command line.

A row without a rating or difficulty passes those bounds, because a missing label does not mean a bad row. A row without
category, lane and task family does not match a category filter, which requires one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shared.contract.sections import ContextFilter, DataSection


class Labelled(Protocol):
    """The metadata that a filter reads; a ``Record`` and a ``TrainingRow`` both have it."""

    @property
    def rating(self) -> int | None: ...
    @property
    def difficulty(self) -> int | None: ...
    @property
    def category(self) -> str | None: ...
    @property
    def lane(self) -> str | None: ...
    @property
    def task_family(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Bounds on rating and difficulty (inclusive), and required categories.

    Attributes:
        categories: lower-case; a row matches when one of them is a part of its category, lane or task family.
    """

    min_rating: int = 0
    min_difficulty: int = 0
    max_difficulty: int = 10
    categories: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: DataSection) -> RowFilter:
        """Return the filter of a contract; the stricter of its two rating bounds applies."""
        return cls.combine(data.min_rating, data.context_filter or ContextFilter())

    @classmethod
    def of_replay(cls, data: DataSection) -> RowFilter:
        """Return the filter of the replay file: ratings count there too, but a context filter only selects new rows to
        train on.
        """
        return cls(min_rating=data.min_rating)

    @classmethod
    def combine(cls, min_rating: int, context: ContextFilter) -> RowFilter:
        return cls(
            min_rating=max(min_rating, context.rating_min or 0),
            min_difficulty=context.difficulty_min or 0,
            max_difficulty=context.difficulty_max or 10,
            categories=tuple(category.lower() for category in context.categories or ()),
        )

    def admits(self, row: Labelled) -> bool:
        """Return whether the row is trained on."""
        return self.admits_marks(row.rating, row.difficulty) and self.has_category(
            row.category, row.lane, row.task_family
        )

    def admits_marks(self, rating: int | None, difficulty: int | None) -> bool:
        """Return whether rows with these marks are trained on, provided that their category matches."""
        if rating is not None and rating < self.min_rating:
            return False
        return difficulty is None or self.min_difficulty <= difficulty <= self.max_difficulty

    def has_category(self, *labels: str | None) -> bool:
        """Return whether a row with these labels has one of the categories; always true if none is required."""
        if not self.categories:
            return True
        there = [label.lower() for label in labels if label]
        return any(category in label for category in self.categories for label in there)


def is_trainable(row: Labelled, min_rating: int) -> bool:
    """Return whether the row passes a rating bound: unrated rows do, 0 keeps all."""
    return row.rating is None or row.rating >= min_rating
