"""The console's own sources: data is only ever shown as text, nothing is loaded from elsewhere, and the whole page
stays small.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.web.console.files import console_files

CONSOLE = Path(__file__).resolve().parents[2] / "api" / "console"
SCRIPTS = {
    str(path.relative_to(CONSOLE)): path.read_text()
    for path in sorted(CONSOLE.rglob("*.js"))
    if path.parent.name != "vendor"
}
INDEX = (CONSOLE / "index.html").read_text()
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\(|new Function|DOMParser"
)
FOREIGN = re.compile(r"""["'`(](?:https?:)?//\w""")
COMPONENT_IN_TEMPLATE = re.compile(r"<\$\{|<[A-Z]\w*[\s/>](?![^\n]*\*/)")
FIRST_FILES = ("", "first_screen.js", "lib/first_calls.js", "style.css", "icon.svg")
MOST_BYTES = 150_000
MOST_FIRST_BYTES = 70_000
MOST_STYLE = 30_000


def imports_of(name: str) -> set[str]:
    """Modules that one module needs before it runs, itself among them."""
    reached, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        text = (CONSOLE / module).read_text()
        for source in re.findall(
            r"""^(?:import|export)[^;]*?["'](\.[^"']+)["']|from["'](\.[^"']+)["']""", text, re.MULTILINE
        ):
            path = (CONSOLE / module).parent / (source[0] or source[1])
            waiting.append(str(path.resolve().relative_to(CONSOLE)))
    return reached


def test_nothing_is_read_as_markup() -> None:
    assert not {name: FORBIDDEN.findall(text) for name, text in SCRIPTS.items() if FORBIDDEN.search(text)}


def test_no_address_is_foreign() -> None:
    sources = SCRIPTS | {"index.html": INDEX, "style.css": (CONSOLE / "style.css").read_text()}
    assert not {name: found for name, text in sources.items() if (found := FOREIGN.findall(text))}


def test_components_are_called_by_h_alone() -> None:
    """In a template a type check does not see a component's properties."""
    code = {name: re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL) for name, text in SCRIPTS.items()}
    assert not {name: found for name, text in code.items() if (found := COMPONENT_IN_TEMPLATE.findall(text))}


def test_a_style_is_an_object_that_the_policy_lets_through() -> None:
    """As text it would become an attribute, which the policy refuses."""
    assert not {name for name, text in SCRIPTS.items() if re.search(r"""\bstyle=["']|\bstyle=\$\{["'`]""", text)}
    assert not re.search(r"<style|\bstyle=|<script(?! type=\"module\" src=)|\bon\w+=", INDEX)


def test_first_screen_does_without_intl() -> None:
    """A browser's first use of it took 50 ms and more."""
    own = imports_of("app.js") & SCRIPTS.keys()
    assert not {name for name in own if re.search(r"\bIntl\.|\.toLocale", SCRIPTS[name])}


def test_first_requests_need_no_other_module() -> None:
    """The first script runs as soon as it is loaded: no script precedes it, and it imports no other module."""
    first = re.findall(r'<script type="module" src="/console/\{digest\}/([^"]+)"( async)?>', INDEX)
    assert first == [("lib/first_calls.js", " async"), ("first_screen.js", "")]
    assert imports_of("lib/first_calls.js") == {"lib/first_calls.js"}


def test_first_screen_is_one_file_and_what_asks_first() -> None:
    """Each request costs a browser milliseconds, also if its cache has the file."""
    served = console_files().others
    needed = imports_of("app.js")
    assert needed & served.keys() == {"lib/first_calls.js"}
    assert all(f"// ---- {name}\n".encode() in served["first_screen.js"].body for name in needed - served.keys())


def test_page_is_small() -> None:
    files = console_files()
    sizes = {name: len(file.compressed) for name, file in files.others.items()} | {"": len(files.index.compressed)}
    assert sum(sizes.values()) <= MOST_BYTES, sizes
    assert sum(sizes[name] for name in FIRST_FILES) <= MOST_FIRST_BYTES
    assert (CONSOLE / "style.css").stat().st_size <= MOST_STYLE


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (FORBIDDEN, "node.innerHTML = name"),
        (FOREIGN, 'fetch("https://example.org/x")'),
        (FOREIGN, "@import url(//example.org/x.css)"),
        (COMPONENT_IN_TEMPLATE, "html`<${Badge} state=x />`"),
        (COMPONENT_IN_TEMPLATE, "html`<Badge state=x />`"),
    ],
)
def test_fault_would_be_found(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)
