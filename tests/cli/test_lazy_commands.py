"""Commands are imported only when one is called: the list of commands matches them, and imports none."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from cli.lazy_commands import ENTRY_POINT, CommandPlace, load
from cli.main import ALIASES, PANELS, PLACES, app
from shared.errors import Code, Unavailable

IMPORTS = """
import sys
from typer.testing import CliRunner
from cli.main import app
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
packages = ("cli.commands.", "openai_migration")
listed = {"pydantic", "httpx"} & sys.modules.keys() or [name for name in sys.modules if name.startswith(packages)]
assert not listed, listed
"""

WITHOUT_PLURAL = {"data", "storage", "usage", "audit", "retention"}
ACTS = {"open", "up", "demo", "generate-data", "train", "plan", "chat", "migrate"}
SINGULAR = {"base", "adapter", "eval", "scorecard"}
"""Commands that are older than the rule of plurals in CONTRIBUTING.md."""


def test_help_imports_no_command() -> None:
    """The migration is loaded by its entry point; `tests/openai_migration/commands/test_app.py` holds what it may import."""
    assert subprocess.run([sys.executable, "-c", IMPORTS], check=False).returncode == 0


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_summary_is_what_the_command_says_of_itself(place: CommandPlace) -> None:
    command = load(place)
    assert place.summary == " ".join(command.help.split("\n\n")[0].splitlines())
    assert (command.name, command.hidden) == (place.name, place.hidden)
    result = CliRunner().invoke(app, [place.name, "--help"])
    assert (result.exit_code, "Usage" in result.output) == (0, True)


def test_command_of_another_package_is_found_by_its_entry_point() -> None:
    assert load(next(place for place in PLACES if place.name == "migrate")).commands.keys() == {"openai"}
    with pytest.raises(Unavailable) as raised:
        load(CommandPlace("absent", ENTRY_POINT, "A command whose package is not installed."))
    assert raised.value.code == Code.PROGRAM_FAILED


def test_nouns_are_plural_but_for_the_listed_ones() -> None:
    assert {place.name for place in PLACES if not place.name.endswith("s")} == WITHOUT_PLURAL | ACTS | SINGULAR


def test_help_lists_every_command_that_is_not_hidden() -> None:
    listed = {
        line.split()[1] for line in CliRunner().invoke(app, ["--help"]).output.splitlines() if line.startswith("│")
    }
    assert {place.name for place in PLACES} & listed == {place.name for place in PLACES if not place.hidden}


def test_help_has_each_command_in_one_of_five_panels() -> None:
    shown = re.findall(r"^╭─ (.+?) ─+╮$", CliRunner().invoke(app, ["--help"]).output, re.MULTILINE)
    assert shown == ["Options", *PANELS]
    assert len(PANELS) == 5
    listed = [name for names in PANELS.values() for name in names]
    assert sorted(listed) == sorted(place.name for place in PLACES if not place.hidden)


@pytest.mark.parametrize("alias", ALIASES)
def test_alias_is_the_command_that_it_stands_for_and_is_not_listed(alias: str) -> None:
    commands = [word for word in ALIASES[alias] if not word.startswith("-")]
    assert CliRunner().invoke(app, [alias, "--help"]).output == CliRunner().invoke(app, [*commands, "--help"]).output
    assert alias not in {place.name for place in PLACES}


def complete(words: str) -> Result:
    """Return bash's completions for a line whose last word is not finished."""
    environment = {
        "_MENS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return CliRunner().invoke(app, [], prog_name="mens", env=environment)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("mens rep", ["replicas"]),
        ("mens al", ["aliases"]),
        ("mens jobs wa", ["watch"]),
        ("mens migrate openai sw", ["switch"]),
        ("mens train --max-g", ["--max-gpu-minutes"]),
        ("mens no-such-command x", []),
    ],
)
def test_completion_knows_commands_and_what_is_below_them(words: str, found: list[str]) -> None:
    assert complete(words).stdout.split() == found


def test_unknown_command_gets_the_nearest() -> None:
    result = CliRunner().invoke(app, ["job"])
    assert (result.exit_code, "Did you mean 'jobs'" in result.output) == (2, True)
