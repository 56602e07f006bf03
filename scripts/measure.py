"""Print the measures of the code and their targets: ``make measure``.

A target is a guide, not a rule: if it would make code worse, ignore it. CONTRIBUTING.md has the figures.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("api", "worker", "serving", "shared", "cli", "corpus", "openai_migration", "bench", "scripts")
TIERS = ("api", "worker", "serving", "cli")
LONGEST_FILE = 300
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class MeasuredFile:
    """A module of the source.

    Attributes:
        path: path from the repository's root, with ``/``.
        lines: number of its lines.
        comments: number of its lines that consist of a comment or end with one.
        functions: number of lines of each function and method, without decorators.
        single_callers: private functions that their module names once, apart from the definition.
        classes: names of its classes.
        imports: modules and names that it imports, with dots.
    """

    path: str
    lines: int
    comments: int
    functions: tuple[int, ...]
    single_callers: tuple[str, ...]
    classes: tuple[str, ...]
    imports: frozenset[str]

    @property
    def module(self) -> str:
        """Dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read_source(path: str, text: str) -> MeasuredFile:
    """Measure a module."""
    nodes = list(ast.walk(ast.parse(text)))
    functions = [node for node in nodes if isinstance(node, Function)]
    mentions = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    )
    private = [node.name for node in functions if re.match(r"_(?!_)", node.name)]
    return MeasuredFile(
        path=path,
        lines=len(text.splitlines()),
        comments=sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline)),
        functions=tuple((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions),
        single_callers=tuple(name for name in private if mentions[name] == 1),
        classes=tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        imports=frozenset(_imports(nodes)),
    )


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def repeated_classes(files: Iterable[MeasuredFile]) -> dict[str, list[str]]:
    """Return the names that several classes share, with the classes' paths."""
    paths = defaultdict(list)
    for file in files:
        for name in file.classes:
            paths[name].append(file.path)
    return {name: places for name, places in paths.items() if len(places) > 1}


def tiers_of_shared(files: Iterable[MeasuredFile]) -> dict[str, set[str]]:
    """Return the tiers that reach each module of `shared/`, directly or through other modules."""
    modules = {file.module: file for file in files}
    reached: dict[str, set[str]] = {name: set() for name in modules if name.startswith("shared.")}
    for tier in TIERS:
        # The migration's package is a command of `mens`: what only these two use has one tier.
        for name in _closure(modules, tier, *(["openai_migration"] if tier == "cli" else [])) & reached.keys():
            if not modules[name].path.endswith("__init__.py"):
                reached[name].add(tier)
    return {name: tiers for name, tiers in reached.items() if not modules[name].path.endswith("__init__.py")}


def _closure(modules: Mapping[str, MeasuredFile], *packages: str) -> set[str]:
    """Return the modules that packages import, directly and indirectly."""
    waiting = [name for name in modules if name.partition(".")[0] in packages]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [module for module in modules[name].imports if module in modules]
    return reached


def sources() -> list[MeasuredFile]:
    """Return every module of the source: no tests, no generated files."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [read_source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]


def table(files: list[MeasuredFile]) -> Iterator[str]:
    """Yield one line of measures per package, and one for the whole source."""
    yield f"{'package':17}{'files':>7}{'lines':>9}{'functions':>11}{'median/p90':>12}{'one caller':>12}{'comments':>10}"
    for name in (*PACKAGES, "all"):
        own = [file for file in files if name in ("all", file.path.partition("/")[0])]
        lengths = [length for file in own for length in file.functions]
        lines = sum(file.lines for file in own)
        yield (
            f"{name:17}{len(own):7}{lines:9,}{len(lengths):11,}{_middle(lengths):>12}"
            f"{sum(len(file.single_callers) for file in own) / len(lengths):12.1%}{sum(file.comments for file in own) / lines:10.1%}"
        )
    yield f"{'target':17}{'':7}{'75,000':>9}{'':11}{'8-10/<=40':>12}{'<= 12 %':>12}{'>= 3 %':>10}"


def _middle(lengths: list[int]) -> str:
    return f"{statistics.median(lengths):.0f}/{statistics.quantiles(lengths, n=10)[-1]:.0f}"


def lists(files: list[MeasuredFile]) -> Iterator[str]:
    """Yield the measures that are lists, each with its target and its members."""
    long = [f"{file.path} {file.lines}" for file in files if file.lines > LONGEST_FILE]
    yield from _listed(f"files over {LONGEST_FILE} lines", "none", long)
    repeated = repeated_classes(files).items()
    yield from _listed("names of several classes", "none", [f"{name}: {', '.join(paths)}" for name, paths in repeated])
    lonely = [f"{name} {', '.join(tiers)}" for name, tiers in sorted(tiers_of_shared(files).items()) if len(tiers) < 2]
    yield from _listed("modules of shared/ that fewer than two tiers reach", "a reason for each", lonely)


def _listed(title: str, target: str, members: list[str]) -> Iterator[str]:
    yield f"\n{title}: {len(members)} (target: {target})"
    yield from (f"  {member}" for member in members)


def main() -> None:
    """Print all measures."""
    files = sources()
    print("\n".join([*table(files), *lists(files)]))


if __name__ == "__main__":
    main()
