"""The skill for agents is written from the commands and the codes, and its examples are valid calls."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from cli.lazy_commands import load
from cli.main import PLACES
from scripts.skill import FOLDER, HEAD, error_page, main, skill
from shared.errors import Code

CALLS = sorted(set(re.findall(r"`(mens [a-z][^`]*)`", HEAD)))


def test_the_folder_is_what_the_script_writes() -> None:
    if os.environ.get("MENS_UPDATE_GOLDEN"):
        main()
    written = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert written == {"SKILL.md": skill(), "errors.md": error_page()}, "`python -m scripts.skill` writes it"


def test_it_has_every_command_and_code_once() -> None:
    text = skill()
    for place in PLACES:
        assert bool(re.search(rf"^\| `mens {place.name}\b", text, re.MULTILINE)) is not place.hidden, place.name
    assert re.findall(r"^\| `([A-Z0-9_]+)`", error_page(), re.MULTILINE) == list(Code)


def test_retry_follows_the_class() -> None:
    rows = dict(re.findall(r"^\| `([A-Z0-9_]+)` \|.*\| ([\w ]+) \|$", error_page(), re.MULTILINE))
    assert rows["SERVING_UNAVAILABLE"] != "no"
    assert rows["RATE_LIMITED"] == "yes"
    assert rows["MODEL_NOT_FOUND"] == "no"


def test_it_stands_alone() -> None:
    """It is copied to where an agent looks for skills, without the other pages."""
    for text in (skill(), error_page()):
        assert set(re.findall(r"\]\(([^)#]+)", text)) <= {"errors.md"}
    assert skill().startswith("---\nname: mens\ndescription: ")


@pytest.mark.parametrize("call", CALLS)
def test_calls_of_the_introduction_exist(call: str) -> None:
    words = call.split()[1:]
    if words[0] == "COMMAND":
        return
    command: Any = load(next(place for place in PLACES if place.name == words[0]))
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    flags = {word for word in words if word.startswith("--")} - {"--help"}
    assert flags <= known
