"""The error tree: as documented, and picklable."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import errors
from shared.errors import Code, JobFailed, MensError, NotFound, TooMany, TooSlow, Unavailable
from tests.support.remedies import documented_actions, not_given

DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"
BRANCH = re.compile(r"^(?P<indent>(?:│   |    )*)(?:├── |└── )(?P<name>\w+) {2,}(?P<meaning>\S.*)$")


def tree(kind: type[MensError] = MensError) -> list[type[MensError]]:
    """The class and all its descendants in `shared.errors`."""
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return [kind, *(found for child in children for found in tree(child))]


def drawn_parents() -> Iterator[tuple[str, str]]:
    """(class, its parent) for each branch of the drawing in the module's docstring."""
    path = ["MensError"]
    for line in (errors.__doc__ or "").splitlines():
        if branch := BRANCH.match(line.removeprefix("    ")):
            depth = len(branch["indent"]) // 4
            path[depth + 1 :] = [branch["name"]]
            yield branch["name"], path[depth]


def documented_codes() -> list[str]:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    return [found[1] for line in lines if (found := re.match(r"^\| `([A-Z0-9_]+)`", line))]


def example(kind: type[MensError]) -> MensError:
    return kind(
        Code.FILE_TOO_LARGE,
        "It is too large.",
        remedy="Make it small.",
        param="data.train_file",
        details={"limit": 3, "list": [{"line": 1}]},
        retryable=not kind.default_retryable,
    )


def test_drawn_tree_is_the_class_tree() -> None:
    assert dict(drawn_parents()) == {kind.__name__: kind.__bases__[0].__name__ for kind in tree()[1:]}


def test_every_exception_of_the_module_is_in_the_tree() -> None:
    found = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert found == set(tree())


@pytest.mark.parametrize("kind", tree())
def test_pickle_keeps_class_and_every_field(kind: type[MensError]) -> None:
    error = example(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


def test_as_dict_has_one_form_and_is_json() -> None:
    expected = {
        "code": "FILE_TOO_LARGE",
        "message": "It is too large.",
        "remedy": "Make it small.",
        "param": "data.train_file",
        "details": {"limit": 3, "list": [{"line": 1}]},
        "retryable": True,
    }
    assert example(JobFailed).as_dict() == expected
    assert json.loads(json.dumps(example(JobFailed).as_dict())) == expected
    assert type(example(JobFailed).as_dict()["code"]) is str


def test_as_dict_of_the_shortest_error() -> None:
    assert NotFound(Code.JOB_NOT_FOUND, "No.").as_dict() == {
        "code": "JOB_NOT_FOUND", "message": "No.", "remedy": "", "param": None, "details": {}, "retryable": False,
    }  # fmt: skip


@pytest.mark.parametrize("kind", tree())
def test_what_may_succeed_later_is_retryable_by_default(kind: type[MensError]) -> None:
    assert kind(Code.INTERNAL_ERROR, "x").retryable is issubclass(kind, (Unavailable, TooMany, TooSlow))


def test_text_has_code_message_and_remedy() -> None:
    assert str(NotFound(Code.JOB_NOT_FOUND, "There is none.")) == "JOB_NOT_FOUND: There is none."
    assert str(example(NotFound)) == "FILE_TOO_LARGE: It is too large. Make it small."


def test_unknown_code_is_refused() -> None:
    with pytest.raises(ValueError, match="NO_SUCH_CODE"):
        NotFound("NO_SUCH_CODE", "x")


def test_details_are_a_copy() -> None:
    details = {"a": 1}
    error = NotFound(Code.JOB_NOT_FOUND, "x", details=details)
    details["a"] = 2
    assert error.details == {"a": 1}


def test_value_of_a_code_is_its_name() -> None:
    assert all(code.name == code.value for code in Code)


def test_commands_settings_and_routes_of_documented_remedies_are_those_of_the_code() -> None:
    assert sum(map(len, documented_actions().values())) > 50
    assert list(not_given()) == []


def test_every_code_is_documented_once() -> None:
    assert sorted(documented_codes()) == sorted(code.value for code in Code)
