"""Adds the console's JavaScript and CSS libraries to a bill of materials: ``python -m scripts.console_components SBOM VENDORED``.

`api/console/vendor/vendored.json` pins them; no lock of Python's packages has them. The builder of the API's image runs this file alone.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote


def components(vendored: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each package of the list as a component of CycloneDX 1.6."""
    return [_component(name, package) for name, package in sorted(vendored["packages"].items())]


def _component(name: str, package: dict[str, str]) -> dict[str, Any]:
    scope, _, own_name = name.rpartition("/")
    purl = f"pkg:npm/{quote(scope, safe='')}{'/' * bool(scope)}{own_name}@{package['version']}"
    digest = base64.b64decode(package["integrity"].removeprefix("sha512-")).hex()
    return {
        "bom-ref": purl,
        "description": "A library of the web console, as api/console/vendor/vendored.json pins it.",
        "hashes": [{"alg": "SHA-512", "content": digest}],  # hash of npm's archive
        "licenses": [{"license": {"id": package["license"]}}],
        "name": name,
        "purl": purl,
        "type": "library",
        "version": package["version"],
    }


def main(sbom: Path, vendored: Path) -> None:
    """Write the list again, with the libraries after the lock's packages."""
    listed, libraries = json.loads(sbom.read_text()), components(json.loads(vendored.read_text()))
    listed["components"] += libraries
    listed["dependencies"] += [{"ref": library["bom-ref"]} for library in libraries]
    sbom.write_text(json.dumps(listed, indent=2) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
