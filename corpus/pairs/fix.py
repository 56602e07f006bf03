"""Rule ``fix``: broken code and the checker's message → the original code. No message is made up."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator
from typing import ClassVar

from corpus.pairs.rule import Draft, RuleContext, fenced, labels, prompt_of, seed_of
from corpus.units.records import UnitRow
from shared.checkers.unit import UnitKind

_WORD = re.compile(r"(?<![\w.\"'])[a-z_]\w{3,}\b")
_BRACKET = re.compile(r"[)\]}]")
_HEADER = re.compile(r":[ \t]*$", re.MULTILINE)
_INDENTATION = re.compile(r"^ (?= *\S)", re.MULTILINE)
_PARAMETER = re.compile(r"(?<=[(,\s])(?!self\b|cls\b)[a-z_]\w*(?:: ?[\w.]+)?(?:, ?|(?=\)))")
_IMPORT = re.compile(r"^(?:from|import) .*\n", re.MULTILINE)


def misspell(code: str, number: int) -> str | None:
    """Swap two letters of a name."""
    words = [word for word in _WORD.finditer(code) if not keyword.iskeyword(word[0])]
    if not words:
        return None
    word = words[number % len(words)]
    name = word[0]
    # The last two letters that differ: the beginning of a name says what it means.
    for place in range(len(name) - 1, 0, -1):
        if name[place] != name[place - 1]:
            other = f"{name[: place - 1]}{name[place]}{name[place - 1]}{name[place + 1 :]}"
            return code[: word.start()] + other + code[word.end() :]
    return None


def drop_bracket(code: str, number: int) -> str | None:
    """Remove a closing bracket."""
    return _without(_BRACKET, code, number)


def drop_colon(code: str, number: int) -> str | None:
    """Remove the colon of a block."""
    return _without(_HEADER, code, number)


def drop_parameter(code: str, number: int) -> str | None:
    """Remove a parameter that the body uses."""
    begin, end = code.find("("), code.find(":\n")
    if begin < 0 or end < begin:
        return None
    changed = _without(_PARAMETER, code[:end], number)
    return None if changed is None else changed + code[end:]


def drop_import(code: str, number: int) -> str | None:
    """Remove an import."""
    return _without(_IMPORT, code, number)


def shift_line(code: str, number: int) -> str | None:
    """Indent a line by one space less."""
    return _without(_INDENTATION, code, number)


def _without(pattern: re.Pattern[str], code: str, number: int) -> str | None:
    matches = list(pattern.finditer(code))
    if not matches:
        return None
    match = matches[number % len(matches)]
    return code[: match.start()] + code[match.end() :]


MUTATIONS: tuple[Callable[[str, int], str | None], ...] = (
    misspell, drop_bracket, drop_parameter, drop_import, shift_line, drop_colon,
)  # fmt: skip


class Fix:
    """The original of code that a mutation has broken so that its checker rejects it."""

    name = "fix"
    version = 1
    needs: ClassVar[frozenset[UnitKind]] = frozenset(("function", "class"))

    def pairs(self, unit: UnitRow, context: RuleContext) -> Iterator[Draft]:
        """See :class:`corpus.pairs.rule.PairRule`."""
        if unit.uses or unit.language != "python":
            # If it used names of its module, the checker would refuse the original too.
            return
        code = "\n\n\n".join(filter(None, [unit.context, unit.code]))
        seed = seed_of(unit)
        for step in range(len(MUTATIONS)):
            mutation = MUTATIONS[(seed + step) % len(MUTATIONS)]
            broken = mutation(code, seed // len(MUTATIONS))
            faults = context.checkers.check(unit.language, broken).diagnostics if broken and broken != code else ()
            if not broken or not faults or faults[0].code not in ("syntax", "name"):
                continue
            messages = "\n".join(f"- {fault}" for fault in faults)
            row = {
                "prompt": prompt_of(self.name, unit, code=fenced(broken, unit.language), faults=messages),
                "response": code,
                **labels("error_correction", "repair", 4, unit),
            }
            yield Draft(row, unit.language, code, {"mutation": mutation.__name__})
            return
