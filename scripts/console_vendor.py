"""Creates the console's libraries again from npm, in the versions that `api/console/vendor/vendored.json` pins:
``python -m scripts.console_vendor``.

The browser gets these files unchanged: Mens has no bundler, and does not need Node. To change a version, write it and
npm's sha512 (`npm view PACKAGE dist.integrity`) into the list, delete the digest of the file, and run this module.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "api" / "console" / "vendor"
LIST = "vendored.json"


def main(folder: Path = FOLDER) -> None:
    """Write every file of the list into a folder, and the digests that are missing into its list.

    Raises:
        SystemExit: a package or a file is not the one that the list pins.
    """
    vendored = json.loads((folder / LIST).read_text())
    with tempfile.TemporaryDirectory() as place:
        packages = {name: _fetched(name, package, Path(place)) for name, package in vendored["packages"].items()}
        for name, file in vendored["files"].items():
            content = _rewritten(packages[file["package"]] / file["path"], file)
            digest = hashlib.sha256(content).hexdigest()
            if file.setdefault("sha256", digest) != digest:
                raise SystemExit(f"{name} is {digest}, not {file['sha256']}.")
            (folder / name).write_bytes(content)
    (folder / LIST).write_text(json.dumps(vendored, indent=2, ensure_ascii=False) + "\n")


def _fetched(name: str, package: dict[str, Any], place: Path) -> Path:
    """Return the folder with a package's content, after checking its archive by npm's digest."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("Install npm (Debian: apt-get install npm): the libraries come from its registry.")
    folder = place / name.replace("/", "-")
    folder.mkdir()
    pin = f"{name}@{package['version']}"
    subprocess.run([npm, "pack", "--silent", pin], cwd=folder, check=True, capture_output=True)
    (archive,) = folder.glob("*.tgz")
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != package["integrity"]:
        raise SystemExit(f"{pin} is {digest}, not {package['integrity']}.")
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
    return folder / "package"


def _rewritten(path: Path, file: dict[str, Any]) -> bytes:
    """Return a file's content after its rewrites, each of which must match exactly once.

    An import of a package by name would need an import map, which would need a hash in the page's content security
    policy. References to source maps are removed, because those files are not included.
    """
    text = path.read_text()
    for old, new in file["rewrites"]:
        if text.count(old) != 1:
            raise SystemExit(f"{path.name} has {old!r} {text.count(old)} times, not once.")
        text = text.replace(old, new)
    return text.encode()


if __name__ == "__main__":
    main()
