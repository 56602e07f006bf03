"""promptfoo's configuration as eval files. Start reading here.

prompts and tests ─► variables filled in ─► assertions as forms ─► tests of equal forms ─► one eval file each
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.evaluation.eval_file import EvalFile, Item
from cli.evaluation.promptfoo.assertions import PLACE, Form, NoCounterpart, to_form

PLACEHOLDER = re.compile(r"\{\{\s*(?P<path>[A-Za-z_][\w.\[\]]*)\s*\}\}")
SAMPLING = {"temperature": "temperature", "top_p": "top_p", "seed": "seed", "max_tokens": "max_completion_tokens"}
USED = ("description", "prompts", "providers", "targets", "defaultTest", "tests")
TEST_KEYS = ("vars", "assert", "description")


@dataclass
class Imported:
    """Result of importing a configuration.

    Attributes:
        evals: one for each prompt and each form of a test.
        unused: parts of the configuration that they leave out, each with its place and the reason.
    """

    evals: list[EvalFile] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Test:
    place: str
    variables: dict[str, Any]
    forms: tuple[Form, ...]


def read_promptfoo(document: Mapping[str, Any], name: str) -> Imported:
    """Return the evals of a configuration.

    Args:
        document: content of the YAML file.
        name: name of the evals if the configuration has no description.
    """
    found = Imported()
    found.unused += [f"{key}: not read" for key in document if key not in USED]
    name = str(document.get("description") or name)
    sampling = _sampling(document, found.unused)
    tests = list(_tests(document, found.unused))
    shapes: dict[tuple[str, ...], list[_Test]] = {}
    for test in tests:
        shapes.setdefault(tuple(form.key for form in test.forms), []).append(test)
    for prompt in _prompts(document, found.unused):
        for group in shapes.values():
            made = _eval_file(prompt, group, sampling, found.unused)
            found.evals.append(EvalFile(name, *made))
    if len(found.evals) > 1:
        found.evals = [
            EvalFile(f"{name} {number}", each.items, each.criteria, each.input_messages, each.sampling)
            for number, each in enumerate(found.evals, 1)
        ]
    return found


# -- prompts and providers ----------------------------------------------------------------------------------------------


def _prompts(document: Mapping[str, Any], unused: list[str]) -> Iterator[list[dict[str, str]]]:
    """Yield each prompt as messages with promptfoo's placeholders."""
    given = document.get("prompts") or []
    for number, prompt in enumerate(given if isinstance(given, list) else [given]):
        text = prompt.get("raw") if isinstance(prompt, dict) else prompt
        place = f"prompts[{number}]"
        if not isinstance(text, str) or text.startswith(("file://", "exec:", "python:")):
            unused.append(f"{place}: prompts in files are not read; put the text into the configuration")
            continue
        if fault := _template_fault(text):
            unused.append(f"{place}: {fault}")
            continue
        yield _messages(text)


def _messages(text: str) -> list[dict[str, str]]:
    """Return a prompt's messages: a chat in JSON or YAML notation, or one user turn."""
    try:
        turns = json.loads(text)
    except ValueError:
        turns = None
    is_chat = isinstance(turns, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("content"), str) and "role" in turn for turn in turns
    )
    return turns if is_chat and turns else [{"role": "user", "content": text}]


def _sampling(document: Mapping[str, Any], unused: list[str]) -> dict[str, Any]:
    """Return the sampling settings of all providers; the command line names the models."""
    given = document.get("providers") or document.get("targets") or []
    settings = []
    for number, provider in enumerate(given if isinstance(given, list) else [given]):
        config = (provider.get("config") if isinstance(provider, dict) else None) or {}
        settings.append({ours: config[theirs] for theirs, ours in SAMPLING.items() if theirs in config})
        named = provider.get("id") if isinstance(provider, dict) else provider
        others = ", ".join(key for key in config if key not in SAMPLING)
        unused.append(
            f"providers[{number}]: {named} is not taken{f', nor its {others}' if others else ''}; name the model with --model"
        )
    if any(one != settings[0] for one in settings):
        unused.append("providers: they are sampled differently, so their settings are not used")
        return {}
    return settings[0] if settings else {}


# -- tests --------------------------------------------------------------------------------------------------------------


def _tests(document: Mapping[str, Any], unused: list[str]) -> Iterator[_Test]:
    default = document.get("defaultTest") if isinstance(document.get("defaultTest"), dict) else {}
    assert isinstance(default, dict)
    unused += [f"defaultTest.{key}: not read" for key in default if key not in TEST_KEYS]
    given = document.get("tests") or []
    for number, test in enumerate(given if isinstance(given, list) else [given]):
        place = f"tests[{number}]"
        if not isinstance(test, dict):
            unused.append(f"{place}: tests in files are not read; put them into the configuration")
            continue
        unused += [f"{place}.{key}: not read" for key in test if key not in TEST_KEYS]
        variables = (default.get("vars") or {}) | (test.get("vars") or {})
        assertions = [*(default.get("assert") or []), *(test.get("assert") or [])]
        for filled in _combinations(variables):
            if fault := _variables_fault(filled):
                unused.append(f"{place}: {fault}")
                continue
            forms = tuple(_forms(place, assertions, filled, unused))
            if forms:
                yield _Test(place, filled, forms)
            else:
                unused.append(f"{place}: skipped, because it has no assertion")


def _combinations(variables: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield promptfoo's expansion: a variable with a list stands for one test for each of its values."""
    choices = [value if isinstance(value, list) else [value] for value in variables.values()]
    for chosen in itertools.product(*choices):
        yield dict(zip(variables, chosen, strict=True))


def _variables_fault(variables: Mapping[str, Any]) -> str:
    for name, value in variables.items():
        if isinstance(value, str) and value.startswith("file://"):
            return f"the variable {name} is in a file, and files of a configuration are not read"
    return ""


def _forms(place: str, assertions: Sequence[Any], variables: Mapping[str, Any], unused: list[str]) -> Iterator[Form]:
    for number, assertion in enumerate(assertions):
        kind = assertion.get("type") if isinstance(assertion, dict) else assertion
        try:
            form = to_form(_filled(assertion, variables))
        except NoCounterpart as reason:
            unused.append(f"{place}.assert[{number}] ({kind}): {reason}")
        else:
            yield form


def _filled(assertion: Any, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return an assertion with its variables filled in."""
    if not isinstance(assertion, dict):
        raise NoCounterpart("it is not an object")
    value = assertion.get("value")
    if not isinstance(value, str):
        return dict(assertion)
    if fault := _template_fault(value):
        raise NoCounterpart(fault)
    try:
        return dict(assertion) | {"value": PLACEHOLDER.sub(lambda found: _text_at(found["path"], variables), value)}
    except KeyError as error:
        raise NoCounterpart(f"the variable {error} does not exist") from None


def _text_at(path: str, variables: Mapping[str, Any]) -> str:
    value: Any = variables
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            raise KeyError(path) from None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _template_fault(text: str) -> str:
    """Return why a template is more than names in braces; empty if it is not."""
    rest = PLACEHOLDER.sub("", text)
    if "{{" in rest or "{%" in rest or "{#" in rest:
        return "its template uses more than names in braces: filters, loops or conditions"
    return ""


# -- eval files ---------------------------------------------------------------------------------------------------------


def _eval_file(
    prompt: list[dict[str, str]], tests: Sequence[_Test], sampling: dict[str, Any], unused: list[str]
) -> tuple[list[Item], list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Return items, criteria, messages and sampling of tests of one form under one prompt."""
    own = all(test.variables.keys() == {"item"} and isinstance(test.variables["item"], dict) for test in tests)
    criteria = []
    values: list[tuple[str, int]] = []
    for number, form in enumerate(tests[0].forms):
        grader = dict(form.grader)
        label = str(grader.get("operation") or grader.get("evaluation_metric") or grader["mens"]["check"])
        if form.value is not None:
            values.append((f"expected_{number + 1}", number))
            grader["reference"] = PLACE % f"expected_{number + 1}"
        criteria.append({"name": f"{number + 1} {label}", **grader})
    items = []
    for test in tests:
        base = test.variables["item"] if own else test.variables
        items.append(dict(base) | {key: test.forms[number].value for key, number in values})
    template = [turn | {"content": _as_item_template(turn["content"], own=own)} for turn in prompt]
    names = {found["path"] for turn in prompt for found in PLACEHOLDER.finditer(turn["content"])}
    for test in tests:
        for path in sorted(names):
            try:
                _text_at(path, test.variables)
            except KeyError:
                unused.append(f"{test.place}: the prompt needs the variable {path}; its item will be an error")
    return items, criteria, {"type": "template", "template": template}, sampling


def _as_item_template(text: str, *, own: bool) -> str:
    prefix = "" if own else "item."
    return PLACEHOLDER.sub(lambda found: f"{{{{ {prefix}{found['path']} }}}}", text)
