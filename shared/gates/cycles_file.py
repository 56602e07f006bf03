"""A file of cycles: one scorecard with its two conditions on each line, for the gate ``cycles``."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from shared.errors import Code, InvalidRequest
from shared.gates.evidence import MAX_CYCLES, MAX_EVENTS, PromotionCycle

MAX_BYTES = 64 << 20


def read_cycles(path: Path) -> tuple[PromotionCycle, ...]:
    """Read the cycles of a file.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``, with the line that is wrong.
    """
    if path.stat().st_size > MAX_BYTES:
        raise _invalid(f"The file has more than {MAX_BYTES >> 20} MiB")
    cycles: list[PromotionCycle] = []
    events = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if number > MAX_CYCLES:
                raise _invalid(f"The file has more than {MAX_CYCLES} cycles")
            cycles.append(_cycle(number, line))
            events += len(cycles[-1].events)
            if events > MAX_EVENTS:
                raise _invalid(
                    f"The cycles up to line {number} have {events} events together; at most {MAX_EVENTS} are accepted"
                )
    return tuple(cycles)


def _cycle(number: int, line: bytes) -> PromotionCycle:
    try:
        return PromotionCycle.model_validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(map(str, fault["loc"]))
        where = f" in {path}" if path else ""
        raise _invalid(f"Line {number} is not a cycle: {fault['msg']}{where}") from None


def _invalid(message: str) -> InvalidRequest:
    remedy = "Write the file with `mens scorecard promote … --save FILE`."
    return InvalidRequest(Code.REQUEST_INVALID, f"{message}.", remedy=remedy, param="cycles")
