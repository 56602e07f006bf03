"""Files of the web console (`api/console/`): read and compressed once, each with the headers that it is sent with.

`index.html` is the page at ``/``; all other files lie under ``/console/<digest>/``, where the digest is that of all files.
So a browser keeps them permanently, and relative imports of a release lead to files of the same release. In
`index.html`, ``{digest}`` stands for it.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from api.web.console.joined_modules import join_modules

FOLDER = Path(__file__).parents[2] / "console"
INDEX = "index.html"
ENTRY, JOINED, ASKS_FIRST = "app.js", "first_screen.js", "lib/first_calls.js"
"""Module with which the page begins; the file in which it is sent, with all that it needs; and the module that does not
wait for them.
"""
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Types of the files that are sent. Licences, type declarations and lists of versions are not sent, because only
readers of the source need them.
"""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer under ``/`` and ``/console/``."""
UNDER_THE_DIGEST = "public, max-age=31536000, immutable"
PLACEHOLDER = b"{digest}"


@dataclass(frozen=True)
class ConsoleFile:
    """A file of the console, as it is sent."""

    media_type: str
    body: bytes
    compressed: bytes

    @classmethod
    def of(cls, name: str, body: bytes) -> ConsoleFile:
        """Return the file with its compressed form, which has no timestamp, so that each process has the same bytes."""
        return cls(MEDIA_TYPES[Path(name).suffix], body, gzip.compress(body, mtime=0))


@dataclass(frozen=True)
class ConsoleFiles:
    """All files of one release's console.

    Attributes:
        digest: first 16 hex digits of the SHA-256 of all names and contents, as they are sent.
        index: the page, which names the digest.
        others: the other files, by their path below the digest.
    """

    digest: str
    index: ConsoleFile
    others: dict[str, ConsoleFile]

    @classmethod
    def read(cls, folder: Path) -> ConsoleFiles:
        """Read the files of a folder."""
        paths = sorted(path for path in folder.rglob("*") if path.suffix in MEDIA_TYPES)
        contents = _joined({path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})
        hashed = hashlib.sha256()
        for name, body in contents.items():
            hashed.update(b"%b %d\n%b" % (name.encode(), len(body), body))
        digest = hashed.hexdigest()[:16]
        page = contents.pop(INDEX).replace(PLACEHOLDER, digest.encode())
        others = {name: ConsoleFile.of(name, body) for name, body in contents.items()}
        return cls(digest, ConsoleFile.of(INDEX, page), others)


def _joined(contents: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files with the modules of the first screen in one."""
    modules = {name: body.decode() for name, body in contents.items() if name.endswith(".js")}
    joined = join_modules(modules, ENTRY, JOINED, apart=[ASKS_FIRST])
    others = {name: body for name, body in contents.items() if name not in modules}
    return others | {name: text.encode() for name, text in sorted(joined.items())}


@cache
def console_files() -> ConsoleFiles:
    """Return the console of this release."""
    return ConsoleFiles.read(FOLDER)
