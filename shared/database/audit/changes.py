"""A transaction's change of one row, with the values before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ChangeKind = Literal["created", "changed", "deleted"]
Values = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """A change of a row, with its fields by name.

    Attributes:
        before: values of the fields that changed, or of all when the row was deleted.
        after: values of the fields that changed, or of all when the row was created.
    """

    kind: ChangeKind
    before: Values
    after: Values

    def then(self, later: Change) -> Change | None:
        """Combine two changes into one; None if they cancel out."""
        if later.kind == "created":  # again, after it was deleted
            return later
        if self.kind == "created":
            return None if later.kind == "deleted" else Change("created", {}, self.after | later.after)
        if later.kind == "deleted":
            return Change("deleted", later.before | self.before, {})
        return Change("changed", later.before | self.before, self.after | later.after)
