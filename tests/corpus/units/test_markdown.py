"""Documents: sections of 100 characters and blocks of 20, as in the original; no line takes long."""

from __future__ import annotations

import time

import pytest

from corpus.units.markdown import find_sections, is_excluded

LONG = "This sentence is one of several that make a section long enough to answer a question about it, and more."
DOCUMENT = f"""\
---
title: Guide
---
# Guide

Too short.

## Install C# ##

{LONG}

Then start it:

```sh
make install && make up
```

```
a block without a language
```

### Later

```python
x = 1
```

~~~python
# not a heading
print("a longer block")
~~~
"""


def test_sections_and_blocks_have_their_headings_and_places() -> None:
    units = find_sections(DOCUMENT)
    assert [(unit.kind, unit.name, unit.context, unit.language) for unit in units] == [
        ("section", "Install C#", "Guide", "markdown"),
        ("block", "Install C#", "Guide", "bash"),
        ("block", "Later", "Guide > Install C#", "python"),
    ]
    section, shell, python = units
    assert section.code.startswith(LONG)
    assert section.code.endswith("```")
    assert (shell.code, shell.docstring) == ("make install && make up", "Then start it:")
    assert python.code == '# not a heading\nprint("a longer block")'
    lines = DOCUMENT.split("\n")
    assert lines[section.first_line - 1] == "## Install C# ##"
    assert lines[python.first_line - 1] == lines[python.last_line - 1].replace("~~~", "~~~python") == "~~~python"
    assert [unit.difficulty for unit in units] == [5, 7, 7]


@pytest.mark.parametrize("line", ["training_eligible: false", "status: deprecated", 'status: "Deprecated"'])
def test_front_matter_excludes_a_document(line: str) -> None:
    assert is_excluded(f"---\ntitle: A\n{line}\n---\n# A\n")
    assert not is_excluded(f"# A\n\n---\n{line}\n---\n")


@pytest.mark.parametrize("text", ["---\n" * 60_000, "# " + " " * 200_000 + "#", "`" * 200_000, "#\n" * 100_000])
def test_hostile_documents_take_little_time(text: str) -> None:
    begin = time.process_time()
    find_sections(text)
    is_excluded(text)
    assert time.process_time() - begin < 5


def test_a_fence_without_an_end_ends_with_its_document() -> None:
    assert [unit.kind for unit in find_sections(f"# A\n{LONG}\n```python\nprint('twenty characters')\n")] == ["section"]
