"""Compares the section ``Raises`` of a docstring with the errors that the function raises itself.

A function's own errors are those of its body, of the functions in the same module that it uses, and of the functions
that make an error for a ``raise`` or surround a block as a context manager. The docstrings of other functions name the
errors that those raise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from corpus.verdicts import VerdictCode
from shared.datasets.rows import RowCode
from shared.errors import Code

ROOT = Path(__file__).resolve().parents[2]
CODES = frozenset({*Code.__members__, *RowCode.__members__, *VerdictCode.__members__})
SECTION = re.compile(r"^Raises:\n((?:    .*\n?|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^    (\S.*(?:\n {8}.*)*)", re.MULTILINE)
MAKERS = 3
"""How many functions, one calling the next, may make one error."""
AGAIN = "raise"
"""Stands for a ``raise`` without an error, which passes on whatever was caught."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class SourceModule:
    """The functions of a module and the names that it imports.

    Attributes:
        functions: functions by name; the name of a class stands for its constructors.
        imports: module and name of each imported name.
    """

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.functions: dict[str, list[Function]] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        self._mentioned: dict[Function, list[Function]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                makers = [item for item in node.body if isinstance(item, Function) and item.name.startswith("__")]
                self.functions.setdefault(node.name, []).extend(makers)
            elif isinstance(node, ast.ImportFrom) and node.module:
                self.imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}

    def documented(self) -> Iterator[tuple[Function, list[str]]]:
        """Yield the functions that name errors, with an entry for each class; not those whose body is only a docstring,
        because others raise their errors.
        """
        for functions in self.functions.values():
            for function in functions:
                section = SECTION.search((ast.get_docstring(function) or "") + "\n")
                if section and len(function.body) > 1 and not _is_abstract(function):
                    yield function, ENTRY.findall(section[1])

    def used_by(self, function: Function) -> list[Function]:
        """Return a function and those of the module that it uses, directly or through others."""
        reached: list[Function] = []
        waiting = [function]
        while waiting:
            current = waiting.pop()
            if current in reached:
                continue
            reached.append(current)
            waiting += self._mentioned_by(current)
        return reached

    def _mentioned_by(self, function: Function) -> list[Function]:
        if function not in self._mentioned:
            nodes = [node for node in _nodes(function) if isinstance(node, ast.Name | ast.Attribute)]
            names = {node.id if isinstance(node, ast.Name) else node.attr for node in nodes}
            self._mentioned[function] = [other for name in names for other in self.functions.get(name, [])]
        return self._mentioned[function]


@cache
def _nodes(root: ast.AST) -> list[ast.AST]:
    return list(ast.walk(root))


def _is_abstract(function: Function) -> bool:
    names = [node for item in function.decorator_list for node in ast.walk(item) if isinstance(node, ast.Name)]
    return any(name.id == "abstractmethod" for name in names)


@cache
def parsed(text: str) -> SourceModule:
    """Return a module, which several others may import, by its source text."""
    return SourceModule(text)


@cache
def read_module(dotted: str) -> SourceModule | None:
    """Return a module of the repository; None: it is another's."""
    path = ROOT / dotted.replace(".", "/")
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.exists():
            return parsed(file.read_text())
    return None


def raised_by(module: SourceModule, function: Function, depth: int = 0) -> set[str]:
    """Return the names of classes and codes that occur where a function raises, makes or returns an error."""
    names: set[str] = set()
    for reached in module.used_by(function):
        for node in _nodes(reached):
            if isinstance(node, ast.Attribute) and node.attr in CODES:
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and node.value in CODES:
                names.add(str(node.value))
            elif isinstance(node, ast.Raise):
                names |= _made(module, node.exc, depth) if node.exc else {AGAIN if depth == 0 else ""}
            elif isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                names |= _made(module, node.value, depth)
            elif isinstance(node, ast.With | ast.AsyncWith):
                for item in node.items:
                    names |= _made(module, item.context_expr, depth)
    return names


def _made(module: SourceModule, error: ast.expr, depth: int) -> set[str]:
    """Return the name of what makes an error, and the names that occur there."""
    maker = error.func if isinstance(error, ast.Call) else error
    name = maker.id if isinstance(maker, ast.Name) else maker.attr if isinstance(maker, ast.Attribute) else ""
    names = {name}
    source, original = module.imports.get(name, ("", ""))
    if depth < MAKERS and source and (other := read_module(source)):
        for function in other.functions.get(original, []):
            names |= raised_by(other, function, depth + 1)
    return names


def is_raised(entry: str, names: set[str]) -> bool:
    """Return whether a function raises what an entry of its section names: each code, or if it names none, each class."""
    codes = set(re.findall(r"``(\w+)``", entry)) & CODES
    if codes:
        return codes <= names
    classes = [item.rpartition(".")[2].strip() for item in entry.partition(":")[0].split(",")]
    return AGAIN in names or all(item in names or item in ("MensError", "Exception") for item in classes)


def unraised(text: str) -> list[str]:
    """Return each entry of a source text that names an error which its function does not raise itself."""
    module = parsed(text)
    return [
        f"{function.name}: {' '.join(entry.split())}"
        for function, entries in module.documented()
        for entry in entries
        if not is_raised(entry, raised_by(module, function))
    ]
