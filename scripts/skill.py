"""Writes the skill for agents, `docs/skill/`, from the commands and the error codes: ``python -m scripts.skill``.

The introduction is written by hand, in `HEAD`. A test compares the folder with the output of this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.lazy_commands import load
from cli.main import PANELS, PLACES
from scripts.site.markdown import code, table
from shared import errors
from shared.errors import Code, MensError

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "skill"
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \| (.+?) \| (.+?) \| (.*?) \|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((?:[^)]*)\)")
HEAD = """---
name: mens
description: Tune language models with Mens, a self-hosted fine-tuning service. Use it to check and convert training rows, plan and start jobs, follow them, call checkpoints and tuned models, compare a model with its base, move aliases, and act on Mens's error codes.
---

# Mens

Mens tunes a base model on a JSONL file and serves the result behind OpenAI's API. `mens` is its command line; the same server answers OpenAI's clients at
`$MENS_API_URL/v1`.

## Rules

- Find the installation first: `mens status`. It reads `MENS_API_URL` and `MENS_API_KEY`, or uses the `mens up` of this machine. Never print a key.
- Use `--json` where you read the result. A command that fails then prints `{"error": {"code", "message", "remedy", "retryable", …}}` on stdout, and ends with
  exit code 1, or 2 if the call itself is wrong.
- Do what `remedy` says. Repeat a command unchanged only if `retryable` is true, and wait first. Look codes up in [errors.md](errors.md).
- Check before you train: the offline checks cost nothing, a job costs hours of a GPU.
- Ask the user before you delete, revoke, cancel, move an alias, or start `mens retention --apply`. These change what others use.
- Read `mens COMMAND --help` before you use options that are not named here.

## From rows to a model

1. `mens data check rows.jsonl --model BASE --json`: `error` is null if the file is usable. Repair the lines that it names, or run `mens data convert` for
   rows of another program. A row is `{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}`.
2. `mens models --json` lists the bases (`mens.kind` is `base`). `mens plan rows.jsonl --model BASE --json` shows steps, memory and time, or why the job cannot run.
3. `mens train rows.jsonl --model BASE --validation held-out.jsonl --alias NAME --no-watch` prints the job's id. Leave out what you have no reason to set.
   Pairs of answers: `--method dpo`. From a tuned model: `--continue NAME`.
4. `mens jobs show ID --json` has `state`: `queued`, `running`, `paused`, `succeeded`, `failed` or `cancelled`. `mens jobs watch ID` waits for the end. `mens jobs logs ID` has
   the trainer's log.
5. A checkpoint can be called while the job trains, once its certificates hold: the event that says so has its id, and `mens models` lists it.
6. `mens chat NAME "…"` asks the result. `mens chat NAME "…" --with BASE` compares it with its base. `mens models show NAME` has the certificates and the losses.
7. `mens aliases rollback NAME` goes back to the model before.

## If a job failed

1. `mens jobs show ID --json`: `error.code`, `error.message`, `error.remedy`.
2. Mens has already retried failures that a retry can fix. A `failed` job is final: correct the cause, then create a new one.
3. If the code says that the operator acts, report code and message to the user, with the job's id.

## Commands
"""
ERRORS_HEAD = """# Error codes of Mens, for agents

Generated from `docs/errors.md` of Mens, which has more. "Retry" is the rule of the code's class; `retryable` of an error takes precedence.
"""


def skill() -> str:
    """Return the text of SKILL.md."""
    places = {place.name: place for place in PLACES if not place.hidden}
    panels = [
        f"### {panel}\n\n{table(('command', 'what it does'), (row for name in names for row in _rows(f'mens {name}', load(places[name]))))}"
        for panel, names in PANELS.items()
    ]
    return "\n".join([HEAD, *panels])


def error_page() -> str:
    """Return the text of errors.md: each code with its remedy, and whether to try again."""
    rows = ROW.findall((ROOT / "docs" / "errors.md").read_text())
    remedies = {name: (remedy, kinds) for name, _, remedy, kinds in rows}
    lines = [
        (code(error_code), LINK.sub(r"\1", remedies[error_code][0]), _retry(remedies[error_code][1]))
        for error_code in Code
    ]
    return f"{ERRORS_HEAD}\n{table(('code', 'what to do', 'retry'), lines)}"


def _rows(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """Yield a command, or its subcommands, each with the first sentence of its help."""
    subcommands = {
        key: subcommand for key, subcommand in getattr(command, "commands", {}).items() if not subcommand.hidden
    }
    for key, subcommand in subcommands.items():
        yield from _rows(f"{name} {key}", subcommand)
    if not subcommands:
        arguments = " ".join(_argument(param) for param in command.params if param.param_type_name == "argument")
        yield code(f"{name} {arguments}".strip()), _first_sentence(command.help or "")


def _argument(param: Any) -> str:
    shown = str(param.metavar or param.name).upper().strip("[]")
    return shown if param.required else f"[{shown}]"


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z])", paragraph)[0]


def _retry(kinds: str) -> str:
    classes: list[type[MensError]] = [getattr(errors, name) for name in kinds.split(", ") if name]
    answers = {kind.default_retryable for kind in classes}
    return "as the error says" if len(answers) > 1 else "yes" if answers == {True} else "no"


def main() -> None:
    """Write the folder."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "SKILL.md").write_text(skill())
    (FOLDER / "errors.md").write_text(error_page())


if __name__ == "__main__":
    main()
