"""The modules of the first screen are one file: with the same text, each once, and with the same exports for those outside."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from api.web.console.joined_modules import join_modules

MODULES = {
    "vendor/tiny.js": "var a=1,b=2;export default function(s){return s+a}export{a as one,b as two,b as second};",
    "vendor/more.js": 'import{one as o}from"./tiny.js";var a=o+2,c=a;export{c as three};export{two}from"./tiny.js";',
    "lib/early.js": "export const early = [];\nexport const half = 0.5;\n",
    "lib/sum.js": (
        '/** @typedef {import("../vendor/tiny.js").Tiny} Tiny */\n'
        'import tiny from "../vendor/tiny.js";\n'
        'import { three, two as deux } from "../vendor/more.js";\n'
        'import { early } from "./early.js";\n'
        "const hidden = 3; // import of nothing\n"
        'early.push("sum");\n'
        "export async function later() { return hidden; }\n"
        "export class Sum { value = tiny(0) + deux + three; }\n"
    ),
    "main.js": (
        'import "./lib/sum.js";\nimport { Sum } from "./lib/sum.js";\n'
        "const hidden = 4;\nexport const total = new Sum().value + hidden;\n"
        'export const other = async () => (await import("./screens/other.js")).seen;\n'
    ),
    "screens/other.js": (
        'import { early, half } from "../lib/early.js";\nimport { Sum, later } from "../lib/sum.js";\n'
        'import { Sum as Again } from "../lib/sum.js";\n'
        "export const seen = [early, half, Sum === Again, await later()];\n"
    ),
}


def joined(changes: dict[str, str] | None = None) -> dict[str, str]:
    return join_modules(MODULES | (changes or {}), "main.js", "all.js", apart=["lib/early.js"])


def test_modules_of_the_entry_are_in_one_file_and_others_stay() -> None:
    assert joined().keys() == {"all.js", "lib/early.js", "screens/other.js"}
    assert joined()["lib/early.js"] == MODULES["lib/early.js"]


def test_text_is_that_of_the_module_but_for_its_statements() -> None:
    whole = joined()["all.js"]
    assert "// ---- lib/sum.js" in whole
    kept = [line for line in MODULES["lib/sum.js"].splitlines() if not line.startswith(("import", "export"))]
    assert "\n".join(kept[-2:]) in whole
    assert all(line in whole for line in kept)
    assert joined()["screens/other.js"].count("\n") == MODULES["screens/other.js"].count("\n")


def test_joined_modules_give_what_single_ones_give(tmp_path: Path) -> None:
    """As a browser runs them: each module once, also for those that come later."""
    node = shutil.which("node")
    assert node, "node runs the console's modules (Debian: apt-get install nodejs)"
    printed = []
    for name, modules, entry in (("single", MODULES, "main.js"), ("joined", joined(), "all.js")):
        for path, text in modules.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
        (tmp_path / name / "package.json").write_text('{"type": "module"}')
        (tmp_path / name / "run.js").write_text(
            f'const all = await import("./{entry}"); const {"{"} total, other {"}"} = all.$main ?? all;\n'
            "console.log(JSON.stringify([total, await other()]));"
        )
        run = subprocess.run([node, "run.js"], cwd=tmp_path / name, capture_output=True, text=True, check=True)
        printed.append(json.loads(run.stdout))
    assert printed[0] == printed[1] == [10, [["sum"], 0.5, True, 3]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lib/sum.js": 'import { four } from "../vendor/more.js";'}, "lib/sum.js imports four from vendor/more.js"),
        ({"screens/other.js": 'import { no } from "../lib/sum.js";'}, "screens/other.js imports no from lib/sum.js"),
        ({"lib/sum.js": 'import { total } from "../main.js";'}, "main.js needs itself, by lib/sum.js"),
        ({"lib/sum.js": 'import * as all from "./early.js";'}, "lib/sum.js has an import or export"),
        ({"lib/sum.js": 'export * from "./early.js";'}, "lib/sum.js has an import or export"),
        ({"lib/sum.js": "export let Sum = 1;"}, "lib/sum.js has an import or export"),
        ({"lib/sum.js": 'export const Sum = import("./x.js");'}, "lib/sum.js imports a module while it runs"),
    ],
)
def test_what_cannot_be_joined_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        joined(changes)
