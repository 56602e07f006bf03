"""Check Python: parse it, compile it, look up its names, check its types if mypy is installed. It is never run."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from pyflakes import messages
from pyflakes.checker import Checker as NameChecker

from shared.checkers.checker import MAX_DIAGNOSTICS, Check, Diagnostic
from shared.checkers.python_units import find_units, shapes_of
from shared.checkers.unit import Units

NAME_FAULTS = (
    messages.UndefinedName,
    messages.UndefinedLocal,
    messages.UndefinedExport,
    messages.DuplicateArgument,
)
"""Pyflakes messages about names that fail at run time; unused imports are not faults."""
CONSTRUCTS: dict[str, tuple[type[ast.AST], ...]] = {
    "function": (ast.FunctionDef, ast.AsyncFunctionDef),
    "async": (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await),
    "class": (ast.ClassDef,),
    "lambda": (ast.Lambda,),
    "loop": (ast.For, ast.AsyncFor, ast.While),
    "conditional": (ast.If, ast.IfExp),
    "match": (ast.Match,),
    "comprehension": (ast.ListComp, ast.SetComp, ast.DictComp),
    "generator": (ast.GeneratorExp, ast.Yield, ast.YieldFrom),
    "exception": (ast.Try, ast.TryStar, ast.Raise),
    "assertion": (ast.Assert,),
    "context": (ast.With, ast.AsyncWith),
    "import": (ast.Import, ast.ImportFrom),
    "annotation": (ast.AnnAssign,),
    "call": (ast.Call,),
    "assignment": (ast.Assign, ast.AugAssign, ast.NamedExpr),
    "comparison": (ast.Compare,),
    "logic": (ast.BoolOp,),
    "arithmetic": (ast.BinOp,),
    "collection": (ast.List, ast.Dict, ast.Set, ast.Tuple),
    "subscript": (ast.Subscript,),
    "attribute": (ast.Attribute,),
    "format": (ast.JoinedStr,),
    "return": (ast.Return,),
    "unpacking": (ast.Starred,),
    "scope": (ast.Global, ast.Nonlocal),
}
_CONSTRUCTS_OF = {
    kind: [name for name, kinds in CONSTRUCTS.items() if kind in kinds]
    for kinds in CONSTRUCTS.values()
    for kind in kinds
}
_SHAPES = shapes_of(_CONSTRUCTS_OF)
_TYPE_FAULT = re.compile(r"^[^:]*:(?P<line>\d+):(?P<column>\d+): error: (?P<message>.*)$", re.MULTILINE)


KINDS = (*CONSTRUCTS, "decorator")


class PythonChecker:
    """Checks Python of the running version."""

    kinds = KINDS

    def check(self, text: str) -> Check:
        """See :class:`shared.checkers.checker.Checker`."""
        try:
            tree = ast.parse(text)
            compile(text, "answer.py", "exec", dont_inherit=True)
        except SyntaxError as error:
            return Check((Diagnostic("syntax", error.msg, error.lineno or None, error.offset or None),))
        except ValueError as error:
            return Check((Diagnostic("syntax", str(error)),))
        faults = sorted(
            (fault for fault in NameChecker(tree).messages if isinstance(fault, NAME_FAULTS)),
            key=lambda fault: (fault.lineno, fault.col),
        )
        diagnostics = [
            Diagnostic("name", str(fault.message % fault.message_args), fault.lineno, fault.col + 1) for fault in faults
        ]
        return Check(tuple(diagnostics[:MAX_DIAGNOSTICS]), Counter(_constructs(tree)), len(set(_code_lines(tree))))

    def units(self, text: str) -> Units:
        """See :class:`shared.checkers.unit.UnitFinder`."""
        return find_units(text, _SHAPES)


class TypedPythonChecker:
    """Also checks types with mypy, in its lenient default mode and without reading other packages."""

    kinds = KINDS

    def __init__(self) -> None:
        import mypy.api

        self._run = mypy.api.run

    def check(self, text: str) -> Check:
        """See :class:`shared.checkers.checker.Checker`."""
        untyped = PythonChecker().check(text)
        if untyped.diagnostics:
            return untyped
        report, _, _ = self._run([
            "--config-file=", "--cache-dir=/dev/null", "--follow-imports=skip", "--ignore-missing-imports", "--no-site-packages",
            "--show-column-numbers", "--no-error-summary", "--hide-error-codes", "-c", text,
        ])  # fmt: skip
        faults = [
            Diagnostic("type", fault["message"], int(fault["line"]), int(fault["column"]))
            for fault in _TYPE_FAULT.finditer(report)
        ]
        return Check(tuple(faults[:MAX_DIAGNOSTICS]), untyped.constructs, untyped.size)


def _constructs(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        yield from _CONSTRUCTS_OF.get(type(node), ())
        if getattr(node, "decorator_list", None):
            yield "decorator"
        if (getattr(node, "annotation", None) and isinstance(node, ast.arg)) or getattr(node, "returns", None):
            yield "annotation"


def _code_lines(tree: ast.Module) -> Iterator[int]:
    """Count lines of statements that do something: no docstring, no ``pass``, no ``...``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node, ast.stmt):
            is_compound = any(isinstance(part, ast.stmt | ast.excepthandler) for part in ast.iter_child_nodes(node))
            end = node.lineno if is_compound else node.end_lineno or node.lineno
            yield from range(node.lineno, end + 1)
