"""The check of grammars with a real child process: expensive ones are refused, and no caller waits for another's."""

from __future__ import annotations

import asyncio
import json
import random
import string
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from serving.grammars.compile_check import CheckLimits, CompileCheck, Grammar, GrammarTooCostly, _Server

pytestmark = pytest.mark.torch

SMALL = Grammar("regex", r"\d{3}-\d{4}")
LIMITS = CheckLimits(seconds=1.0, white_space=1)


def bomb(number: int = 0) -> Grammar:
    """A few KB for which xgrammar needs far more than a second, with this vocabulary."""
    return Grammar("regex", "(a?b)?" * 2500 + str(number))


@pytest.fixture(scope="module")
def vocabulary() -> str:
    from xgrammar import TokenizerInfo

    chance = random.Random(0)
    words = ["".join(chance.choices(string.ascii_lowercase[:4], k=chance.randint(2, 9))) for _ in range(20_000)]
    tokens = [bytes([number]) for number in range(256)] + [word.encode() for word in words]
    return str(TokenizerInfo(tokens, stop_token_ids=[0]).serialize_json())


class Run:
    """Runs a test's steps with a check of its own; they share the process, which takes seconds to load xgrammar."""

    def __init__(self, vocabulary: str) -> None:
        self.vocabulary = vocabulary
        self._server: _Server | None = None

    def __call__(self, limits: CheckLimits, steps: Callable[[CompileCheck], Awaitable[None]]) -> None:
        async def checked() -> None:
            check = CompileCheck(lambda: self.vocabulary, limits)
            check._server = self._server
            try:
                await steps(check)
            finally:
                self._server = check._server

        asyncio.run(checked())

    def close(self) -> None:
        """End the process."""
        check = CompileCheck(lambda: self.vocabulary, LIMITS)
        check._server, self._server = self._server, None
        check.close()


@pytest.fixture(scope="module")
def run(vocabulary: str) -> Iterator[Run]:
    run = Run(vocabulary)
    yield run
    run.close()


def servers() -> list[psutil.Process]:
    """Processes that fork for each grammar; other tests may have left children of theirs."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # one that has ended has no command line
            found += [child] if "compile_server" in " ".join(child.cmdline()) else []
    return found


def server() -> psutil.Process:
    """The one that is running."""
    (found,) = servers()
    return found


async def compiling(count: int) -> None:
    """Wait until this many grammars are being compiled."""
    while not servers() or len(server().children()) != count:  # noqa: ASYNC110 # no event exists for it
        await asyncio.sleep(0.02)


def test_cheap_grammars_pass_and_vllm_refuses_what_is_not_a_grammar(run: Run) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 100}}}
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    grammars = [
        SMALL,
        Grammar("json", json.dumps(schema)),
        Grammar("ebnf", 'root ::= "yes" | "no"'),
        Grammar("lark", 'start: "yes" | "no"'),
        Grammar("structural_tag", json.dumps(tag)),
        Grammar("ebnf", "no grammar at all"),
    ]

    async def steps(check: CompileCheck) -> None:
        for grammar in grammars:
            await check.check(grammar, "acme")

    # A cheap grammar takes milliseconds, and more where many programs share a processor.
    run(CheckLimits(seconds=20.0, white_space=1), steps)


def test_what_costs_too_much_is_refused_and_nothing_is_found_out_twice(run: Run) -> None:
    async def steps(check: CompileCheck) -> None:
        with pytest.raises(GrammarTooCostly, match="takes more than 1 s of processor time"):
            await check.check(bomb(), "acme")
        await check.check(SMALL, "acme")
        first = server()
        first.kill()
        first.wait(10)
        with pytest.raises(GrammarTooCostly):
            await check.check(bomb(), "other")
        await check.check(SMALL, "other")
        assert not servers(), "both were remembered"
        await check.check(Grammar("regex", "another"), "acme")
        assert server().pid != first.pid, "a server that has ended is started again"

    run(LIMITS, steps)


def test_what_takes_too_much_memory_is_refused(run: Run) -> None:
    async def steps(check: CompileCheck) -> None:
        with pytest.raises(GrammarTooCostly):
            await check.check(bomb(), "acme")

    run(CheckLimits(seconds=60, white_space=1, memory_bytes=1 << 20), steps)


def test_one_callers_bombs_keep_no_other_waiting(run: Run) -> None:
    async def steps(check: CompileCheck) -> None:
        bombs = [asyncio.create_task(check.check(bomb(number), "acme")) for number in range(8)]
        await compiling(1)
        for number in range(3):
            await check.check(Grammar("regex", rf"\d{{{number}}}"), "other")
        assert not any(each.done() for each in bombs[1:]), "a caller's own are compiled one after the other"
        for each in bombs:
            each.cancel()
        await asyncio.gather(*bombs, return_exceptions=True)

    run(CheckLimits(seconds=5, white_space=1), steps)


def test_caller_who_leaves_ends_the_compile(run: Run) -> None:
    async def steps(check: CompileCheck) -> None:
        waiting = asyncio.create_task(check.check(bomb(), "acme"))
        await compiling(1)
        began = time.monotonic()
        waiting.cancel()
        await compiling(0)
        assert time.monotonic() - began < 60
        await check.check(SMALL, "acme")

    run(CheckLimits(seconds=300, white_space=1), steps)


def test_server_ends_with_its_replica(run: Run) -> None:
    async def steps(check: CompileCheck) -> None:
        await check.check(SMALL, "acme")
        found.append(server())

    found: list[psutil.Process] = []
    run(LIMITS, steps)
    run.close()
    assert not found[0].is_running()
