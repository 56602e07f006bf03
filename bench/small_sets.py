"""Four small data sets of a typical kind for fine-tuning, made on any Debian machine: ``python -m bench.small_sets
FOLDER``.

- ``packages``: a package's one-line description → its section (real text: ``apt-cache dumpavail``).
- ``names``: the first line of a docstring → the function's name (real text: Python's standard library).
- ``requirements``: the packages that a package depends on → JSON with their least versions (real text: ``apt-cache
  dumpavail``).
- ``expenses``: a sentence on an expense → JSON with four fields (made up).

``replay`` contains general requests with a base's own answers, which ``bench/defaults.py`` uses.
"""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

Pair = tuple[str, str]
LEAST_VERSION = r"([a-z0-9.+-]+) \(>= ([^)]+)\)"
SECTIONS = ("games", "fonts", "graphics", "sound", "mail", "science", "editors", "database")
MAX_WORDS = 16
MAX_FILES = 400
PEOPLE = ("I", "We", "Anna", "Tom", "My sister", "The office", "Dr. Lee", "Our team")
GOODS = {
    "food": ("lunch", "groceries", "a pizza", "coffee and cake", "dinner at the harbour"),
    "travel": ("a train ticket", "a taxi", "two nights in a hotel", "a flight to Rome", "petrol"),
    "office": ("printer paper", "a desk lamp", "three pens", "a keyboard", "stamps"),
    "leisure": ("cinema tickets", "a museum visit", "a novel", "a concert", "a board game"),
}
CURRENCIES = {"EUR": ("euros", "EUR", "€"), "USD": ("dollars", "USD", "$"), "GBP": ("pounds", "GBP", "£")}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FRAMES = (
    "{who} paid {amount} {unit} for {what} on {day}.",
    "On {day} {who} spent {amount} {unit} on {what}.",
    "{what}: {amount} {unit}, {day}, {who}",
    "It cost {who} {amount} {unit} to get {what} last {day}.",
)
GENERAL = (
    "What is the capital of Italy?", "What is the capital of Japan?", "What is 3 + 4?", "What is 9 - 2?",
    "Name the largest planet.", "What is the opposite of big?", "What is the opposite of day?", "Name three animals.",
    "Name two fruits.", "Write one sentence about a cat.", "Write one sentence about the sea.", "What do bees make?",
    'Translate "thank you" into French.', 'Translate "house" into Spanish.', "How many months are in a year?",
    "What is the freezing point of water in Celsius?", "Who painted the Mona Lisa?", "What is a computer?",
    "Explain in one sentence what rain is.", "What is the chemical symbol of gold?", "Which season follows winter?",
    "Name the days of the weekend.", "What is the plural of mouse?", "What color is grass?",
)  # fmt: skip
"""Requests that differ from all of the product's general questions."""


def available_packages() -> Iterator[dict[str, str]]:
    """Yield the one-line fields of each package that the machine's package sources offer."""
    text = subprocess.run(("apt-cache", "dumpavail"), capture_output=True, text=True, check=True).stdout
    for record in text.split("\n\n"):
        yield dict(line.split(": ", 1) for line in record.splitlines() if ": " in line and line[0] != " ")


def packages() -> list[Pair]:
    """Return descriptions of packages, evenly from each section."""
    by_section: dict[str, list[Pair]] = {section: [] for section in SECTIONS}
    for fields in available_packages():
        section, description = fields.get("Section", ""), fields.get("Description", "")
        if section in by_section and section not in description.lower():
            by_section[section].append((f"In which section of Debian is this package? {description}", section))
    even = min(map(len, by_section.values()))
    return [pair for pairs in by_section.values() for pair in pairs[:even]]


def requirements() -> list[Pair]:
    """Return the distinct dependency lines of two packages, each with a least version."""
    pairs: dict[str, str] = {}
    for fields in available_packages():
        line = fields.get("Depends", "")
        if re.fullmatch(rf"{LEAST_VERSION}, {LEAST_VERSION}", line):
            pairs[f"Which packages does this package need? {line}"] = json.dumps(dict(re.findall(LEAST_VERSION, line)))
    return list(pairs.items())


def names() -> list[Pair]:
    """Return the first docstring lines of functions whose name has two or more words."""
    pairs: dict[str, str] = {}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:MAX_FILES]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.FunctionDef) or not re.fullmatch(r"[a-z]+(_[a-z]+)+", node.name):
                continue
            line = (ast.get_docstring(node) or "").partition("\n")[0]
            if line.endswith(".") and 4 <= len(line.split()) <= MAX_WORDS and node.name not in line:
                pairs[node.name] = f"Name a Python function for this docstring: {line}"
    return [(prompt, name) for name, prompt in pairs.items()]


def expenses() -> list[Pair]:
    """Return sentences about expenses, each with a different template, sum and day."""
    rng = random.Random(7)
    pairs: dict[str, str] = {}
    while len(pairs) < 400:
        kind = rng.choice(sorted(GOODS))
        code = rng.choice(sorted(CURRENCIES))
        amount, day = rng.choice((rng.randint(2, 99), rng.randint(100, 900))), rng.choice(DAYS)
        what = rng.choice(GOODS[kind])
        fields = {"who": rng.choice(PEOPLE), "amount": amount, "unit": rng.choice(CURRENCIES[code]), "day": day}
        value = {"amount": amount, "currency": code, "day": day, "category": kind}
        pairs[rng.choice(FRAMES).format(what=what, **fields)] = json.dumps(value)
    return list(pairs.items())


SETS: dict[str, Callable[[], list[Pair]]] = {
    "packages": packages,
    "names": names,
    "requirements": requirements,
    "expenses": expenses,
}


def write_set(folder: Path, name: str, rows: int, held_out: int) -> None:
    """Write ``NAME.jsonl`` and ``NAME-held-out.jsonl``."""
    pairs = SETS[name]()
    random.Random(f"{name}-1").shuffle(pairs)
    write_rows(folder / f"{name}.jsonl", pairs[:rows])
    write_rows(folder / f"{name}-held-out.jsonl", pairs[rows : rows + held_out])


def write_rows(path: Path, pairs: list[Pair]) -> None:
    """Write pairs as chats."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        json.dumps({"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]})
        for ask, answer in pairs
    )
    path.write_text("".join(f"{line}\n" for line in lines))


def main() -> None:
    """Entry point."""
    for name in SETS:
        write_set(Path(sys.argv[1]), name, rows=240, held_out=48)


if __name__ == "__main__":
    main()
