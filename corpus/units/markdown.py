"""Divide a Markdown document into sections and fenced code blocks, within the limits of the original system."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from shared.checkers.answers import FENCE, LANGUAGE_NAMES
from shared.checkers.unit import Unit

MIN_SECTION = 100
"""Minimum length of a section that can answer a question, in characters."""
MIN_BLOCK = 20
BLOCK_DIFFICULTY = 7
SECTION_DIFFICULTY = 5
_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_EXCLUDED = re.compile(
    r"^(?:training_eligible:[ \t]*[\"']?(?:false|no|off)|status:[ \t]*[\"']?deprecated)[\"']?[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)


def is_excluded(text: str) -> bool:
    """Return whether the front matter says that the document must not be trained on."""
    matter = _FRONT_MATTER.match(text)
    return bool(matter and _EXCLUDED.search(matter[1]))


def find_sections(text: str) -> list[Unit]:
    """Divide a document whose lines end with a line feed. A section ends at the next heading of any level."""
    matter = _FRONT_MATTER.match(text)
    skipped = matter[0].count("\n") if matter else 0
    document = _Document()
    for number, line in enumerate(text.split("\n")[skipped:], start=skipped + 1):
        document.read(number, line)
    document.end_section()
    return sorted(document.units, key=lambda unit: (unit.first_line, unit.kind))


@dataclass(slots=True)
class _Document:
    units: list[Unit] = field(default_factory=list)
    headings: list[tuple[int, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    first_line: int = 1
    fence: str = ""
    language: str = ""
    block: list[str] = field(default_factory=list)

    def read(self, number: int, line: str) -> None:
        fence = FENCE.match(line)
        if self.fence:
            if fence and fence[1].startswith(self.fence) and not fence[2]:
                self._end_block(number)
            else:
                self.block.append(line)
        elif fence:
            self.fence, self.language, self.block = fence[1], fence[2].lower(), []
        elif heading := _HEADING.match(line):
            self.end_section()
            self.first_line = number
            level = len(heading[1])
            name = line[heading.end() :].strip()
            bare = name.rstrip("#")
            # Hash signs at the end belong to the heading's markup, except in a name such as C#.
            name = bare.rstrip() if bare.endswith((" ", "\t")) else name
            self.headings = [part for part in self.headings if part[0] < level] + [(level, name)]
            return
        self.lines.append(line)

    def _end_block(self, number: int) -> None:
        code = "\n".join(self.block)
        first = number - len(self.block) - 1
        language = LANGUAGE_NAMES.get(self.language, self.language)
        if len(code.strip()) >= MIN_BLOCK and language and self.headings:
            # The paragraph above says what the block is.
            above = "\n".join(self.lines[: len(self.lines) - len(self.block) - 1])
            before = " ".join(above.rstrip().rpartition("\n\n")[2].split())
            self.units.append(self._unit("block", language, code, before, (first, number), BLOCK_DIFFICULTY))
        self.fence = ""

    def end_section(self) -> None:
        text = "\n".join(self.lines).strip()
        if len(text) >= MIN_SECTION and self.headings:
            last = self.first_line + len(self.lines)
            self.units.append(self._unit("section", "markdown", text, "", (self.first_line, last), SECTION_DIFFICULTY))
        self.lines, self.fence = [], ""

    def _unit(self, kind: str, language: str, code: str, before: str, lines: tuple[int, int], difficulty: int) -> Unit:
        names = [name for _, name in self.headings]
        return Unit(
            "block" if kind == "block" else "section", names[-1], language, code, *lines,
            docstring=before,
            context=" > ".join(names[:-1]),
            size=sum(bool(line.strip()) for line in code.split("\n")),
            ast_hash=hashlib.sha256(" ".join(code.split()).encode()).hexdigest(),
            difficulty=difficulty,
        )  # fmt: skip
