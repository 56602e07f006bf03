"""The formula of a ``multi`` grader: ``+ - * / ^``, brackets and a few functions over the scores of its parts.

A parser by recursive descent, after the usual rules of precedence: ``^`` binds strongest and to the right, so ``-2 ^
2`` is -4.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping

from shared.errors import Code, InvalidRequest

LONGEST = 1_000
DEEPEST = 50
"""Deepest nesting of brackets."""
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[-+*/^(),]))"
)

Scores = Mapping[str, float]
Term = Callable[[Scores], float]

ONE_ARGUMENT: dict[str, Callable[[float], float]] = {
    "abs": abs, "floor": math.floor, "ceil": math.ceil, "exp": math.exp, "sqrt": math.sqrt, "log": math.log,
}  # fmt: skip
SEVERAL_ARGUMENTS: dict[str, Callable[[Iterable[float]], float]] = {"min": min, "max": max}
FUNCTIONS = frozenset(ONE_ARGUMENT) | frozenset(SEVERAL_ARGUMENTS)
_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip


class Formula:
    """A formula that is parsed once and computed often.

    Attributes:
        names: names of the scores that it needs.

    Raises:
        InvalidRequest: ``GRADER_FORMULA_INVALID``: it cannot be read.
    """

    def __init__(self, text: str) -> None:
        self.names: set[str] = set()
        self._text, self._depth = text, 0
        self._tokens = _tokens(text)
        self._term = self._sum()
        if self._tokens:
            raise _invalid(text, f"{self._tokens[0]!r} is not expected at this position")

    def __call__(self, scores: Scores) -> float:
        """Compute the value for some scores.

        Raises:
            InvalidRequest: ``GRADER_RESULT_INVALID``: it has no value, for example after a division by zero.
        """
        try:
            value = float(self._term(scores))
        except (ArithmeticError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            message = f"The formula {self._text[:200]!r} is not finite for these scores."
            raise InvalidRequest(Code.GRADER_RESULT_INVALID, message, param="calculate_output")
        return value

    def _take(self, *tokens: str) -> str:
        return self._tokens.pop(0) if self._tokens and self._tokens[0] in tokens else ""

    def _sum(self) -> Term:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Term:
        return self._chain(self._signed, "*", "/")

    def _chain(self, part: Callable[[], Term], *signs: str) -> Term:
        first, more = part(), []
        while sign := self._take(*signs):
            more.append((_OPERATORS[sign], part()))

        def value(scores: Scores) -> float:
            # A loop, because a sum of hundreds must not be hundreds of calls within calls.
            result = first(scores)
            for function, term in more:
                result = function(result, term(scores))
            return result

        return value if more else first

    def _signed(self) -> Term:
        # A loop, because a thousand signs must not be a thousand calls.
        is_negative = False
        while sign := self._take("+", "-"):
            is_negative ^= sign == "-"
        power = self._power()
        return (lambda scores: -power(scores)) if is_negative else power

    def _power(self) -> Term:
        base = self._atom()
        if not self._take("^"):
            return base
        self._deeper()
        exponent = self._signed()
        self._depth -= 1
        return lambda scores: math.pow(base(scores), exponent(scores))

    def _atom(self) -> Term:
        if not self._tokens:
            raise _invalid(self._text, "it ends too early")
        part = self._tokens.pop(0)
        if part == "(":
            return self._arguments(1, 1)[0]
        if part in FUNCTIONS:
            return self._function(part)
        if part[0].isdigit() or part[0] == ".":
            number = float(part)
            return lambda _: number
        if not part.isidentifier():
            raise _invalid(self._text, f"{part!r} is not expected at this position")
        self.names.add(part)
        return lambda scores: scores[part]

    def _function(self, name: str) -> Term:
        if not self._take("("):
            raise _invalid(self._text, f"`{name}` is a function and needs brackets")
        if function := ONE_ARGUMENT.get(name):
            argument = self._arguments(1, 1)[0]
            return lambda scores: function(argument(scores))
        several, arguments = SEVERAL_ARGUMENTS[name], self._arguments(1, LONGEST)
        return lambda scores: several([argument(scores) for argument in arguments])

    def _arguments(self, least: int, most: int) -> list[Term]:
        """Parse the arguments after an opening bracket, up to the closing one."""
        self._deeper()
        terms = [self._sum()]
        while self._take(","):
            terms.append(self._sum())
        if not self._take(")"):
            raise _invalid(self._text, "a bracket is not closed")
        if not least <= len(terms) <= most:
            raise _invalid(self._text, f"{len(terms)} arguments are given where {most} is expected")
        self._depth -= 1
        return terms

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise _invalid(self._text, f"it is nested deeper than {DEEPEST}")


def _tokens(text: str) -> list[str]:
    if len(text) > LONGEST:
        raise _invalid(text, f"it is longer than {LONGEST} characters")
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        if not (token := _TOKEN.match(text, position)):
            raise _invalid(text, f"{text[position:].strip()[:10]!r} is not valid in a formula")
        tokens.append(token[0].strip())
        position = token.end()
    return tokens


def _invalid(text: str, reason: str) -> InvalidRequest:
    remedy = f"A formula has numbers, names of its graders, + - * / ^ ( ) and {', '.join(sorted(FUNCTIONS))}."
    message = f"The formula {text[:200]!r} cannot be read: {reason}."
    return InvalidRequest(Code.GRADER_FORMULA_INVALID, message, remedy=remedy, param="calculate_output")
