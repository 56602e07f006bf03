"""Types of the console's JavaScript, declared in comments: TypeScript checks them strictly, without a build."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from api.web.console.files import FOLDER
from tests.system.fetched import CONSOLE, console_programs

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

OPTIONS = {
    "allowJs": True,
    "checkJs": True,
    "noEmit": True,
    "strict": True,
    "target": "es2024",
    "lib": ["es2024", "dom", "dom.iterable"],
    "module": "esnext",
    "moduleResolution": "bundler",
    "skipLibCheck": True,
    "types": [],
}
TYPES_OF = {
    "preact": 'export * from "preact";',
    "preact-hooks": 'export * from "preact/hooks";',
    "signals": 'export * from "@preact/signals";',
    "signals-core": 'export * from "@preact/signals-core";',
    "htm": "declare const htm: { bind(h: typeof import('preact').h): (strings: TemplateStringsArray, ...values: any[]) => any };\n"
    "export default htm;",
    "uplot": 'export { default } from "uplot";',
}
"""By vendored module: where its types are. Those of templates are any: only what is called by `h` is checked."""
WRONG = """import { h } from "./parts/html.js";
import { Progress } from "./parts/state.js";
export const wrong = h(Progress, { step: "three", total: 4 });
"""


def test_types_are_those_of_the_vendored_versions() -> None:
    vendored = json.loads((FOLDER / "vendor" / "vendored.json").read_text())["packages"]
    wanted = json.loads((CONSOLE / "package.json").read_text())["dependencies"]
    assert {name: wanted.get(name) for name in vendored if name != "htm"} == {
        name: package["version"] for name, package in vendored.items() if name != "htm"
    }


def test_types_are_as_declared_and_a_wrong_property_is_found(tmp_path: Path) -> None:
    programs = console_programs()
    (tmp_path / "node_modules").symlink_to(programs / "node_modules")
    shutil.copytree(FOLDER, tmp_path / "console", ignore=shutil.ignore_patterns("vendor"))
    vendor = tmp_path / "console" / "vendor"
    vendor.mkdir()
    for module, types in TYPES_OF.items():
        (vendor / f"{module}.d.ts").write_text(types)
    (tmp_path / "console" / "wrong.js").write_text(WRONG)
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "include": ["console"]}))
    checker = programs / "node_modules" / ".bin" / "tsc"
    checked = subprocess.run([checker, "--pretty", "false"], cwd=tmp_path, capture_output=True, text=True, check=False)
    found = [line for line in checked.stdout.splitlines() if not line.startswith(" ")]
    assert [line.partition("(")[0] for line in found] == ["console/wrong.js"], checked.stdout
