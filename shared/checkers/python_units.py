"""Divide a Python file into its module, functions, classes, methods and tests, in one pass over its tree.

The pass writes the tree as a list of tokens. A unit is a slice of that list, so that its digest, constructs and nesting
need no separate pass.
"""

from __future__ import annotations

import ast
import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shared.checkers.checker import Diagnostic
from shared.checkers.unit import Unit, UnitKind, Units, difficulty_of

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = _Function | ast.ClassDef
_DEFINITIONS = frozenset((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
_BLOCKS = frozenset((
    ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try,
    ast.TryStar,
))  # fmt: skip
"""Statements of which only the first line counts as a line."""
_BOUND: dict[type, tuple[str, ...]] = {
    ast.arg: ("arg",), ast.MatchAs: ("name",), ast.MatchStar: ("name",), ast.MatchMapping: ("rest",),
}  # fmt: skip
"""Fields that contain a bound name, in nodes that are not statements."""
_NOTED = frozenset((ast.Constant, ast.JoinedStr, ast.arg))
"""Expressions of which the pass notes more than their tokens."""
_LOCAL = "\0"
"""Prefix of a local name's replacement; source text cannot contain it."""
_NO_TREE = frozenset(
    ("ctx", "type_comment", "kind", "type_ignores", "lineno", "col_offset", "end_lineno", "end_col_offset")
)


class _Shape(NamedTuple):
    """Form in which the pass writes a class of node.

    Attributes:
        constructs: names of the constructs that a node of this class counts as.
        fields: its fields that are written, each with whether it may contain a bound name.
    """

    name: str
    constructs: list[str]
    fields: tuple[tuple[str, bool], ...]


Shapes = Mapping[type[ast.AST], _Shape]


def shapes_of(constructs_of: Mapping[type[ast.AST], list[str]]) -> Shapes:
    """Return the shapes of all classes of node.

    Args:
        constructs_of: names of the constructs that each class of node counts as.
    """
    kinds = [kind for kind in vars(ast).values() if isinstance(kind, type) and issubclass(kind, ast.AST)]
    return {
        kind: _Shape(
            kind.__name__,
            constructs_of.get(kind, []),
            tuple((name, name in _BOUND.get(kind, ())) for name in kind._fields if name not in _NO_TREE),
        )
        for kind in kinds
    }


@dataclass(slots=True)
class _Place:
    """A position of the pass: indexes into its lists."""

    tokens: int
    names: int
    kinds: int
    depths: int


@dataclass(slots=True)
class _Span:
    """A definition, and its slices of the pass."""

    node: _Definition
    owner: str
    depth: int
    scope: int
    begin: _Place
    end: _Place


class _Pass:
    """The pass over a parsed file, and the units that it found.

    Args:
        text: its lines end with a line feed.
        tree: the text's syntax tree.
        shapes: shapes of all classes of node.
    """

    def __init__(self, text: str, tree: ast.Module, shapes: Shapes) -> None:
        self._text = text
        self._tree = tree
        self._shapes = shapes
        self._lines = text.split("\n")
        self._tokens: list[str] = []
        # Where names are in the tokens, and the scope that binds each: 0 where it is only read.
        self._names: list[int] = []
        self._scopes: list[int] = []
        self._kinds: list[str] = []
        self._depths: list[int] = []
        self._code_lines: set[int] = set()
        self._string_lines: set[int] = set()
        self._spans: list[_Span] = []
        self._statement(tree, 0, 0, "")
        self._sorted_lines = sorted(self._code_lines)
        self._imports = dict(_imports(tree.body))
        self._module_names = set(_module_names(tree.body)) - self._imports.keys()

    # -- the pass -----------------------------------------------------------------------------------------------------

    def _place(self) -> _Place:
        return _Place(len(self._tokens), len(self._names), len(self._kinds), len(self._depths))

    def _name(self, name: str, scope: int) -> None:
        self._names.append(len(self._tokens))
        self._scopes.append(scope)
        self._tokens.append(name)

    def _statement(self, node: Any, depth: int, scope: int, owner: str | None) -> None:
        """Write a statement, or the module.

        Args:
            depth: number of blocks around it.
            scope: number of functions around it.
            owner: name of the enclosing class, followed by a period; empty in a module, None in a function.
        """
        kind = type(node)
        self._depths.append(depth)
        if kind in _DEFINITIONS:
            self._definition(node, kind, depth, scope, owner)
            return
        shape = self._shapes[kind]
        self._tokens.append(shape.name)
        self._kinds += shape.constructs
        if kind in _BLOCKS:
            self._code_lines.add(node.lineno)
        elif kind is not ast.Module and kind is not ast.Pass and not _is_constant(node):
            self._code_lines.update(range(node.lineno, node.end_lineno + 1))
        if kind is ast.Module:
            self._fields(node, depth, scope, owner)
        elif kind is ast.Global or kind is ast.Nonlocal:
            for name in node.names:
                self._name(name, 0)
        else:
            self._block(node, kind, depth, scope, owner)

    def _definition(self, node: Any, kind: type, depth: int, scope: int, owner: str | None) -> None:
        begin, shape, is_class = self._place(), self._shapes[kind], kind is ast.ClassDef
        self._tokens.append(shape.name)
        self._kinds += shape.constructs
        self._name(node.name, scope if owner is None else 0)
        if node.decorator_list:
            self._kinds.append("decorator")
        self._code_lines.add(node.lineno)
        inner = None if owner is None or not is_class else f"{owner}{node.name}."
        self._fields(node, depth, scope if is_class else scope + 1, inner)
        if owner is not None:
            self._spans.append(_Span(node, owner, depth, scope, begin, self._place()))

    def _fields(self, node: Any, depth: int, scope: int, owner: str | None) -> None:
        """Write the fields of a definition, or of the module."""
        for name, _ in self._shapes[type(node)].fields:
            value = getattr(node, name)
            if name == "body":
                self._body(value[_has_docstring(node) :], depth + 1, scope, owner)
            elif name != "name" and (name != "type_params" or value):
                # Python 3.12 added type parameters; a digest without any is that of 3.11.
                if name == "returns" and value is not None:
                    self._kinds.append("annotation")
                self._value(value, scope)

    def _block(self, node: Any, kind: type, depth: int, scope: int, owner: str | None) -> None:
        for name, _ in self._shapes[kind].fields:
            value = getattr(node, name)
            if isinstance(value, ast.expr):
                self._expression(value, scope)
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                # An `elif` is written as an `if` in the `else`, but it does not nest.
                is_elif = kind is ast.If and name == "orelse" and len(value) == 1 and type(value[0]) is ast.If
                self._body(value, depth if is_elif else depth + 1, scope, owner)
            elif name in ("handlers", "cases"):
                for part in value:
                    self._tokens.append(type(part).__name__)
                    self._block(part, type(part), depth, scope, owner)
            elif name == "name" and value is not None:
                self._name(value, scope)
            else:
                self._value(value, scope)

    def _body(self, statements: list[ast.stmt], depth: int, scope: int, owner: str | None) -> None:
        self._tokens.append("{")
        for statement in statements:
            self._statement(statement, depth, scope, owner)
        self._tokens.append("}")

    def _value(self, value: Any, scope: int) -> None:
        """Write an expression, or another value of a field."""
        if isinstance(value, ast.AST):
            self._expression(value, scope)
        elif isinstance(value, list):
            self._tokens.append("[")
            for item in value:
                self._value(item, scope)
            self._tokens.append("]")
        else:
            # Python refuses to write a large number in decimal digits.
            self._tokens.append(hex(value) if type(value) is int else repr(value))

    def _expression(self, node: Any, scope: int) -> None:
        # Most of the pass's time is spent here, so names and nested expressions are written without another call.
        kind, tokens = type(node), self._tokens
        if kind is ast.Name:
            self._names.append(len(tokens))
            self._scopes.append(scope if type(node.ctx) is not ast.Load else 0)
            tokens.append(node.id)
            return
        name, constructs, fields = self._shapes[kind]
        tokens.append(name)
        self._kinds += constructs
        if kind in _NOTED:
            self._note(node, kind)
        for field, is_bound in fields:
            value = getattr(node, field)
            if isinstance(value, ast.AST):
                self._expression(value, scope)
            elif type(value) is list:
                tokens.append("[")
                for item in value:
                    self._value(item, scope)
                tokens.append("]")
            elif is_bound and value is not None:
                self._name(value, scope)
            else:
                self._value(value, scope)

    def _note(self, node: Any, kind: type) -> None:
        if kind is not ast.arg:
            if node.end_lineno > node.lineno:
                self._note_string(node)
        elif node.annotation is not None:
            self._kinds.append("annotation")

    def _note_string(self, node: ast.Constant | ast.JoinedStr) -> None:
        """Note the lines that are content of a string, whose first spaces are not indentation."""
        if not isinstance(getattr(node, "value", ""), str):
            return
        lines = self._lines[node.lineno - 1 : node.end_lineno]
        if any('"""' in line or "'''" in line or line.endswith("\\") for line in lines):
            self._string_lines.update(range(node.lineno + 1, node.lineno + len(lines)))

    # -- units --------------------------------------------------------------------------------------------------------

    def find(self) -> Iterator[Unit]:
        """Yield the module, then its definitions by first line."""
        if self._tree.body:
            yield self._module()
        for span in sorted(self._spans, key=lambda span: (_first_line(span.node), span.begin.tokens)):
            yield self._unit(span)

    def _module(self) -> Unit:
        begin, end = _Place(0, 0, 0, 0), self._place()
        kinds = Counter(self._kinds)
        size = len(self._sorted_lines)
        return Unit(
            "module", "", "python", self._text, 1, len(self._lines) - (not self._lines[-1]),
            docstring=ast.get_docstring(self._tree) or "",
            constructs=kinds,
            size=size,
            ast_hash=self._digest(begin, end, renames_first=False),
            difficulty=difficulty_of(size, self._nesting(begin, end, -1), len(kinds)),
        )  # fmt: skip

    def _unit(self, span: _Span) -> Unit:
        node, begin, end = span.node, span.begin, span.end
        first, last = _first_line(node), node.end_lineno or node.lineno
        kinds = Counter(self._kinds[begin.kinds : end.kinds])
        size = bisect_right(self._sorted_lines, last) - bisect_left(self._sorted_lines, node.lineno)
        free = self._free_names(span)
        body = node.body[0]
        body_line = _first_line(body)
        signature, is_one_line = self._signature(node, first, body)
        docstring = ast.get_docstring(node) or ""
        if docstring:
            body_line = _first_line(node.body[1]) if len(node.body) > 1 else last + 1
            is_one_line = is_one_line or (len(node.body) > 1 and body_line <= (body.end_lineno or body_line))
        return Unit(
            _kind(node, span.owner),
            span.owner + node.name,
            "python",
            "\n".join(self._dedented(first, last, node.col_offset)),
            first,
            last,
            signature=signature,
            docstring=docstring,
            head_lines=0 if is_one_line else body_line - first,
            context="\n".join(self._context(free)),
            uses=tuple(sorted(free & self._module_names)),
            constructs=kinds,
            size=size,
            ast_hash=self._digest(begin, end, renames_first=not span.owner),
            difficulty=difficulty_of(size, self._nesting(begin, end, span.depth), len(kinds)),
        )

    def _nesting(self, begin: _Place, end: _Place, depth: int) -> int:
        """Return the nesting depth of the innermost statement, relative to the body."""
        return max(0, max(self._depths[begin.depths : end.depths], default=depth + 1) - depth - 1)

    def _digest(self, begin: _Place, end: _Place, *, renames_first: bool) -> str:
        """Return the digest of a slice of tokens, its local names replaced by their order."""
        offset, tokens = begin.tokens, self._tokens[begin.tokens : end.tokens]
        names, scopes = self._names[begin.names : end.names], self._scopes[begin.names : end.names]
        local = {tokens[place - offset] for place, scope in zip(names, scopes, strict=True) if scope}
        if renames_first:
            local.add(tokens[1])
        order: dict[str, str] = {}
        for place in names if local else ():
            name = tokens[place - offset]
            if name in local:
                if name not in order:
                    order[name] = f"{_LOCAL}{len(order)}"
                tokens[place - offset] = order[name]
        return hashlib.sha256("\n".join(tokens).encode(errors="surrogatepass")).hexdigest()

    def _free_names(self, span: _Span) -> set[str]:
        """Return the names that a definition reads but does not bind; for a class, also some that its methods bind."""
        bound = span.scope + 1 if isinstance(span.node, _Function) else -1
        names = self._names[span.begin.names : span.end.names]
        scopes = self._scopes[span.begin.names : span.end.names]
        read = {self._tokens[place] for place, scope in zip(names[1:], scopes[1:], strict=True) if not scope}
        own = {self._tokens[place] for place, scope in zip(names, scopes, strict=True) if scope == bound}
        return read - own - ({span.node.name} if not span.owner else set())

    def _context(self, free: set[str]) -> list[str]:
        imports = [line for name, line in self._imports.items() if name in free]
        future = self._imports.get("annotations", "")
        return [future, *(line for line in imports if line != future)] if "__future__" in future else imports

    def _signature(self, node: _Definition, first: int, body: ast.stmt) -> tuple[str, bool]:
        """Return the text before a body, and whether the body begins on the last line of that text."""
        last = _first_line(body)
        lines = self._dedented(first, last, node.col_offset)
        before = self._lines[last - 1].encode()[: body.col_offset].decode()
        if is_one_line := bool(before.strip()):
            cut = len(self._lines[last - 1]) - len(before)
            lines[-1] = lines[-1][: len(lines[-1]) - cut].rstrip()
        else:
            lines.pop()
        while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
            lines.pop()
        return "\n".join(lines).rstrip(), is_one_line

    def _dedented(self, first: int, last: int, columns: int) -> list[str]:
        """Return lines of the file with the indentation removed, except where they are the content of a string."""
        lines = self._lines[first - 1 : last]
        if not columns:
            return lines
        indentation = lines[0][:columns]
        return [
            line if number in self._string_lines else line.removeprefix(indentation) if line.strip() else ""
            for number, line in enumerate(lines, start=first)
        ]


def find_units(text: str, shapes: Shapes) -> Units:
    """Divide a file; see :class:`shared.checkers.unit.UnitFinder`.

    Args:
        shapes: shapes from :func:`shapes_of`.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        tree = ast.parse(text)
        compile(tree, "unit.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        return Units((), (Diagnostic("syntax", error.msg, error.lineno or None, error.offset or None),))
    except ValueError as error:
        return Units((), (Diagnostic("syntax", str(error)),))
    return Units(tuple(_Pass(text, tree, shapes).find()))


def _kind(node: _Definition, owner: str) -> UnitKind:
    if isinstance(node, ast.ClassDef):
        tests = any(isinstance(part, _Function) and part.name.startswith("test") for part in node.body)
        return "test" if tests and node.name.startswith("Test") else "class"
    if node.name.startswith("test_") and (not owner or owner.startswith("Test")):
        return "test"
    return "method" if owner else "function"


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)]) if decorators else node.lineno


def _has_docstring(node: Any) -> bool:
    return bool(node.body) and _is_constant(node.body[0]) and isinstance(node.body[0].value.value, str)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _imports(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the names that a module imports, each with an import statement for that name alone."""
    for node in _module_statements(body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], f"import {_alias(alias)}"
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                line = f"from {'.' * node.level}{node.module or ''} import {_alias(alias)}"
                yield alias.asname or alias.name, line


def _alias(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _module_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in _module_statements(body):
        if isinstance(node, _Definition):
            yield node.name
        else:
            yield from (part.id for part in _names_of(node) if not isinstance(part.ctx, ast.Load))


def _names_of(node: ast.stmt) -> Iterator[ast.Name]:
    """Yield the names in a statement, except the names in statements within it."""
    waiting: list[ast.AST] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Name):
            yield part
        waiting.extend(child for child in ast.iter_child_nodes(part) if not isinstance(child, ast.stmt))


def _module_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those within its blocks, but not those of functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, _Definition):
            for part in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                for name in ("body", "orelse", "finalbody"):
                    yield from _module_statements(getattr(part, name, ()))
