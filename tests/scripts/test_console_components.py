"""The console's libraries as components of a bill of materials."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from scripts.console_components import main


def test_libraries_follow_the_packages_with_version_licence_and_digest(tmp_path: Path) -> None:
    sbom, vendored = tmp_path / "sbom.json", tmp_path / "vendored.json"
    sbom.write_text(json.dumps({"components": [{"name": "httpx"}], "dependencies": [{"ref": "requirements-L1"}]}))
    digest = "sha512-" + base64.b64encode(bytes(range(64))).decode()
    pinned = {"@preact/signals": {"version": "2.11.4", "integrity": digest, "license": "MIT"}}
    vendored.write_text(json.dumps({"packages": pinned}))
    main(sbom, vendored)
    listed = json.loads(sbom.read_text())
    package, library = listed["components"]
    assert package == {"name": "httpx"}
    assert (library["name"], library["version"]) == ("@preact/signals", "2.11.4")
    assert library["licenses"] == [{"license": {"id": "MIT"}}]
    assert library["hashes"] == [{"alg": "SHA-512", "content": bytes(range(64)).hex()}]
    assert library["purl"] == library["bom-ref"] == "pkg:npm/%40preact/signals@2.11.4"
    assert listed["dependencies"][-1] == {"ref": library["bom-ref"]}
