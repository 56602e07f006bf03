"""The short forms for code: it compiles, and it is not a stub; in the named language, by a checker or a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.checkers.contained import ContainedCheckers
from shared.errors import Code, InvalidRequest
from shared.graders.grading import check_runnable, grade, has_code, make_sample, require_compilers
from shared.graders.types import GRADER, Grader
from shared.sandbox.client import Sandbox
from tests.support.compilers import CONTAINED, WITH_GCC

pytestmark = pytest.mark.network

GOOD = "def double(values):\n    return [2 * value for value in values]\n"


def make(**mens: Any) -> Grader:
    return GRADER.validate_python({"type": "python", "source": "", "mens": mens})


@pytest.fixture(scope="module")
def checkers() -> Iterator[ContainedCheckers]:
    with ContainedCheckers(seconds=60) as running:
        yield running


@pytest.mark.parametrize(
    ("language", "text", "compiles", "is_no_stub"),
    [
        ("python", GOOD, 1, 1),
        ("python", f"Of course:\n```python\n{GOOD}```\nTODO: try it.", 1, 1),
        ("python", f"{GOOD}# TODO\n", 1, 0),
        ("python", "def f():\n    pass\n", 1, 0),
        ("python", "def f(:", 0, 0),
        ("python", "print(missing)\n", 0, 0),
        ("python", "-" * 50_000 + "1", 0, 0),
        ("json", '{"a": [1]}', 1, 1),
        ("json", "1", 1, 0),
        ("sql", "SELECT a FROM t WHERE b = 1", 1, 1),
        ("sql", "SELECT FROM", 0, 0),
    ],
)
def test_code_is_checked(
    checkers: ContainedCheckers, language: str, text: str, compiles: float, is_no_stub: float
) -> None:
    for name, expected in (("compiles", compiles), ("anti_stub", is_no_stub)):
        grader = make(check=name, language=language)
        check_runnable(grader)
        assert grade(grader, {}, make_sample(text), checkers=checkers).score == expected


@pytest.mark.parametrize(
    "mens",
    [
        {"check": "compiles"},
        {"check": "anti_stub"},
        {"check": "pass_at_k", "of": {"type": "python", "source": "", "mens": {"check": "compiles"}}},
    ],
)
def test_code_that_is_judged_is_not_run(checkers: ContainedCheckers, tmp_path: Path, mens: dict[str, Any]) -> None:
    """The original's rewards built the code that they judged, and with it whatever the model had written into the build."""
    trace = tmp_path / "trace"
    text = f"from pathlib import Path\n\nfor each in range(3):\n    Path({str(trace)!r}).touch()\n    print([each])\n"
    assert grade(make(**mens), {}, make_sample(text), checkers=checkers).score == 1
    assert grade(make(**mens), {}, make_sample(text)).score == 1
    assert not trace.exists()
    exec(compile(text, "answer", "exec"), {})  # what would have been seen
    assert trace.exists()


def test_without_a_kept_process_one_is_started() -> None:
    assert grade(make(check="compiles"), {}, make_sample(GOOD)).score == 1


def test_the_input_is_a_template(checkers: ContainedCheckers) -> None:
    grader = make(check="compiles", input="{{ item.before }}{{ sample.output_text }}")
    assert grade(grader, {"before": "x = 1\n"}, make_sample("print(x)\n"), checkers=checkers).score == 1


@pytest.mark.parametrize("name", ["compiles", "anti_stub"])
def test_an_unknown_language_is_refused_at_creation(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_runnable(make(check=name, language="cobol"))
    assert (refused.value.code, refused.value.param) == (Code.CHECKER_NOT_FOUND, "language")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox("bubblewrap") as opened:
        yield opened


C = "Of course:\n```c\nint twice(int x) { return 2 * x; }\n```"


@WITH_GCC
@CONTAINED
@pytest.mark.sandbox
def test_a_compiler_judges_code_in_the_sandbox(sandbox: Sandbox) -> None:
    grader = make(check="compiles", language="c")
    check_runnable(grader, sandbox)
    assert has_code(grader)
    for text, score in ((C, 1), (C.replace("x;", "y;"), 0), ("/" * 200_001, 0)):
        assert grade(grader, {}, make_sample(text), sandbox=sandbox).score == score


@WITH_GCC
@CONTAINED
@pytest.mark.sandbox
def test_pass_at_k_of_what_compiles(sandbox: Sandbox) -> None:
    inner = {"type": "python", "source": "", "mens": {"check": "compiles", "language": "c"}}
    grader = make(check="pass_at_k", k=1, of=inner)
    assert has_code(grader)
    choices = [{"message": {"content": text}} for text in (C, "int f(", C, "}")]
    assert grade(grader, {}, {"choices": choices}, sandbox=sandbox).score == 0.5
    multi = {"type": "multi", "graders": {"a": grader.model_dump()}, "calculate_output": "a"}
    assert has_code(GRADER.validate_python(multi))


@WITH_GCC
@pytest.mark.sandbox
def test_where_nothing_contains_a_compiler_it_is_refused() -> None:
    grader = make(check="compiles", language="c")
    for attempt in (
        lambda: check_runnable(grader),
        lambda: grade(grader, {}, make_sample(C)),
        lambda: check_runnable(grader, Sandbox("landlock")),
        lambda: grade(grader, {}, make_sample(C), sandbox=Sandbox("landlock")),
        lambda: require_compilers([make(check="pass_at_k", of=grader.model_dump())], Sandbox("landlock")),
    ):
        with pytest.raises(InvalidRequest) as refused:
            attempt()
        assert refused.value.code == Code.SANDBOX_UNAVAILABLE
    require_compilers([make(check="compiles"), make(check="regex", pattern="x")], Sandbox("landlock"))


@WITH_GCC
def test_a_compiler_does_not_say_what_code_is_made_of() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_runnable(make(check="anti_stub", language="c"))
    assert refused.value.code == Code.CHECKER_NOT_FOUND


def test_what_a_checker_reads_needs_no_sandbox() -> None:
    assert not has_code(make(check="compiles"))
    assert not has_code(make(check="pass_at_k", of=make(check="compiles", language="json").model_dump()))
