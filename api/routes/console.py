"""The web console's page and files: ``/`` and ``/console/``. They need no key, so they use no pool thread and no database.

They contain no data: the page requests what it shows from the public API, like any client.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response, status

from api.errors import error_response
from api.web.console.files import HEADERS, UNDER_THE_DIGEST, ConsoleFile, console_files
from api.web.etags import is_known
from api.web.response_headers import accepts_gzip
from shared.errors import Code, NotFound

router = APIRouter(tags=["console"], default_response_class=Response)
HTML: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/html": {"schema": {"type": "string"}}}, "description": "The page."}
}
FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
        "description": "The file, which never changes.",
    }
}


@router.get("/", responses=HTML)
async def console_page(request: Request) -> Response:
    """The web console."""
    files = console_files()
    headers = {"Cache-Control": "no-cache", "ETag": f'W/"{files.digest}"'}
    if is_known(headers["ETag"], request.headers.get("if-none-match", "")):
        return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=HEADERS | headers)
    return _response(files.index, request, headers)


@router.get("/console/callback", responses=HTML)
async def console_callback(request: Request) -> Response:
    """The console's page at the address to which the identity provider redirects. The page sends the parameters to the API."""
    return _response(console_files().index, request, {"Cache-Control": "no-cache"})


@router.get("/console/{digest}/{path:path}", responses=FILE)
async def console_file(digest: str, path: str, request: Request) -> Response:
    """A file of the web console. The path contains a digest of the release's files, so that another release answers 404
    and not with its own file.
    """
    files = console_files()
    if digest != files.digest or path not in files.others:
        response = error_response(
            NotFound(
                Code.CONSOLE_FILE_NOT_FOUND,
                "The console of this release has no such file.",
                remedy="Reload the page `/`: Mens was updated, or is being updated.",
            )
        )
        response.headers.update(HEADERS | {"Cache-Control": "no-store"})  # another API process may have the file
        return response
    return _response(files.others[path], request, {"Cache-Control": UNDER_THE_DIGEST})


def _response(file: ConsoleFile, request: Request, headers: dict[str, str]) -> Response:
    """Return the response with a file, compressed if the caller takes it."""
    headers = HEADERS | headers | {"Vary": "Accept-Encoding"}
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(file.compressed, media_type=file.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(file.body, media_type=file.media_type, headers=headers)
