"""Join modules of the console: those of the first screen are sent as one file, because twenty requests cost a browser
more time than their content.

Each module is a function of the joined file, with its own text: only ``import`` and ``export`` are replaced, and no line
moves within it. A module outside that imports one of them takes it from the joined file. So a page has each
module once, and people read in the browser's tools what the repository has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from posixpath import dirname, join, normpath, relpath

_BEGIN = r"(?:^|(?<=[;}]))"
STATEMENT = re.compile(
    rf"""{_BEGIN}(?:
    import\s*(?:(?P<default>\w+)\s*from\s*|\{{(?P<imported>[^}}]*)\}}\s*from\s*)?"(?P<source>\.[^"]+)";?
    |export\s*\{{(?P<exported>[^}}]*)\}}(?:\s*from\s*"(?P<origin>\.[^"]+)")?;?
    |export\s+default\s+(?P<is_default>)
    |export\s+(?P<declaration>(?:async\s+)?function|class|const)\s+(?P<name>[\w$]+)
    )""",
    re.MULTILINE | re.VERBOSE,
)
"""The forms of both statements that the console and its libraries use."""
LEFT = re.compile(rf"{_BEGIN}(?:import|export)\b(?!\s*\()", re.MULTILINE)
DYNAMIC_IMPORT = re.compile(r"\bimport\(")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
"""Comments of this form declare types, which may be another module's."""


def join_modules(modules: Mapping[str, str], entry: str, name: str, apart: Collection[str] = ()) -> dict[str, str]:
    """Return all modules as they are sent: the joined file, and each module that is not in it.

    Args:
        modules: texts by path.
        entry: module that is joined with all that it needs before it runs.
        name: path of the joined file, in the folder of the entry.
        apart: modules that stay files although the entry needs them; they need no other module.

    Raises:
        ValueError: a module has a statement that is not understood, needs itself, or imports what another does not
            export.
    """
    order = [path for path in _in_order(modules, entry, ()) if path not in apart]
    exports = {path: _exports(path, text) for path, text in modules.items()}
    blocks = [f'import * as {_variable(path)} from "{_relative(path, name)}";\n' for path in apart]
    for path in order:
        if dirname(path) != dirname(name) and DYNAMIC_IMPORT.search(COMMENT.sub("", modules[path])):
            raise ValueError(f"{path} imports a module while it runs, whose path would change in {name}")
        body = _Rewriting(path, exports, inside={*order, *apart}, file="").of(modules[path])
        exported = ", ".join(_pair(outer, inner) for outer, inner in exports[path].items())
        blocks.append(
            f"\n// ---- {path}\nexport const {_variable(path)} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n"
        )
    others = {
        path: _Rewriting(path, exports, inside=set(order), file=_relative(name, path)).of(text)
        for path, text in modules.items()
        if path not in order
    }
    return {name: "".join(blocks), **others}


class _Rewriting:
    """Replaces the statements of one module.

    Args:
        path: the module.
        exports: what each module exports.
        inside: modules whose exports are in a variable.
        file: joined file from which the variables are imported; empty: the module is in it.
    """

    def __init__(self, path: str, exports: Mapping[str, Mapping[str, str]], inside: Collection[str], file: str) -> None:
        self._path, self._exports, self._inside, self._file = path, exports, inside, file
        self._imported: set[str] = set()

    def of(self, text: str) -> str:
        """Return the text with its statements replaced."""
        return STATEMENT.sub(self._replaced, text)

    def _replaced(self, statement: re.Match[str]) -> str:
        source = statement["source"]
        if source is None:
            return statement[0] if self._file else _without_export(statement)
        target = _resolved(source, self._path)
        names = [("default", statement["default"])] if statement["default"] else _names(statement["imported"] or "")
        if missing := {outer for outer, _ in names} - self._exports.get(target, {}).keys():
            raise ValueError(
                f"{self._path} imports {', '.join(sorted(missing))} from {target}, which has no such export"
            )
        if target not in self._inside:
            return statement[0]
        taken = ", ".join(_pair(outer, inner) for outer, inner in names)
        constants = f"const {{ {taken} }} = {_variable(target)};" if names else ""
        if not self._file or target in self._imported:
            return constants
        self._imported.add(target)
        return f'import {{ {_variable(target)} }} from "{self._file}"; {constants}'


def _without_export(statement: re.Match[str]) -> str:
    if statement["is_default"] is not None:
        return "const $default = "
    return f"{statement['declaration']} {statement['name']}" if statement["name"] else ""


def _exports(path: str, text: str) -> dict[str, str]:
    """Return what a module exports: expressions within the module, by the name outside."""
    if LEFT.search(STATEMENT.sub("", text)):
        raise ValueError(f"{path} has an import or export that is not understood")
    exports: dict[str, str] = {}
    for statement in STATEMENT.finditer(text):
        if statement["is_default"] is not None:
            exports["default"] = "$default"
        elif statement["name"]:
            exports[statement["name"]] = statement["name"]
        elif statement["exported"] is not None:
            origin = statement["origin"]
            prefix = f"{_variable(_resolved(origin, path))}." if origin else ""
            exports |= {outer: prefix + inner for inner, outer in _names(statement["exported"])}
    return exports


def _names(text: str) -> list[tuple[str, str]]:
    """Return the first and the last name of each part of a list such as ``a, b as c``."""
    entries = [part.split() for part in text.split(",") if part.strip()]
    return [(part[0], part[-1]) for part in entries]


def _pair(outer: str, inner: str) -> str:
    """Return a property with a name outside and one inside, as object literals and patterns have it."""
    return outer if outer == inner else f"{outer}: {inner}"


def _in_order(modules: Mapping[str, str], path: str, above: tuple[str, ...]) -> list[str]:
    """Return a module and all that it needs, each after those that it needs."""
    if path in above:
        raise ValueError(f"{path} needs itself, by {above[-1]}")
    order: dict[str, None] = {}
    for statement in STATEMENT.finditer(modules[path]):
        if source := statement["source"] or statement["origin"]:
            order |= dict.fromkeys(_in_order(modules, _resolved(source, path), (*above, path)))
    return [*order, path]


def _resolved(source: str, path: str) -> str:
    return normpath(join(dirname(path), source))


def _relative(path: str, other: str) -> str:
    """Return the path of a module as another one imports it."""
    source = relpath(path, dirname(other) or ".")
    return source if source.startswith(".") else f"./{source}"


def _variable(path: str) -> str:
    """Return the variable with a module's exports. No source has a name that begins so."""
    return "$" + re.sub(r"\W", "_", path.removesuffix(".js"))
