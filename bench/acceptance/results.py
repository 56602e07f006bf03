"""One part of a stage: its figures and goals, as a value, as JSON, and as a program that measures it on a device."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.harness.command import print_goal


@dataclass(frozen=True)
class Goal:
    """A figure and its target.

    Attributes:
        at_most: whether the target is the largest allowed figure; otherwise it is the smallest.
        facts: further keys of its line.
    """

    name: str
    figure: float
    target: float
    at_most: bool = True
    facts: dict[str, Any] = field(default_factory=dict)

    def judge(self, *, smoke: bool) -> bool:
        """Print the goal's line of JSON; return whether it is met. A figure that is not a number meets no target."""
        met = self.figure <= self.target if self.at_most else self.figure >= self.target
        return print_goal(
            self.name,
            figure=self.figure if math.isfinite(self.figure) else None,
            target=self.target,
            met=met,
            smoke=smoke,
            **self.facts,
        )


@dataclass(frozen=True)
class PartResult:
    """Result of a part.

    Attributes:
        figures: columns of its row, by name.
    """

    figures: Mapping[str, float | str]
    goals: list[Goal] = field(default_factory=list)

    @classmethod
    def read(cls, output: str) -> PartResult:
        """Parse the result that a program has printed as its last line."""
        fields = json.loads(output.splitlines()[-1])
        return cls(fields["figures"], [Goal(**goal) for goal in fields["goals"]])

    def __str__(self) -> str:
        return "  ".join(
            f"{name} {value if isinstance(value, str) else format(value, '.4g')}"
            for name, value in self.figures.items()
        )


def run_part(parts: Mapping[str, Callable[..., PartResult]]) -> None:
    """Run the part that the command line names, on the device that it names, and print its result."""
    part, *arguments = sys.argv[1:]
    print(json.dumps(asdict(parts[part](*arguments))))
