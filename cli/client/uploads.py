"""The files of a job: checked here first, sent to the API, and deleted there again if the job is refused."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any

import httpx
import typer

from cli.client.connection import connect, fail_with, fail_with_response, note, send
from cli.client.remedies import with_file
from shared.contract.choices import DataMode
from shared.contract.contracts import FineTuneContract
from shared.datasets.filters import RowFilter
from shared.datasets.forms.advice import advise_on_folder
from shared.datasets.preferences.reader import reading_of
from shared.datasets.reader import check_dataset, read_records
from shared.errors import Code, DatasetInvalid, InvalidRequest, MensError

REPLAY = "replay_file"


def check_files(contract: FineTuneContract, files: Mapping[str, Path], *, keep_all: bool) -> None:
    """Read the files of a job as the API will, so that a file that it would refuse is not sent completely first.

    Args:
        files: files by the contract field that will name them.
        keep_all: do not apply the contract's filter, because a preset or a domain that the API applies may change it.
    """
    data, read = contract.data, read_records if not contract.has_preferences else reading_of(contract.method.type)
    for field, path in files.items():
        filters = RowFilter.of_replay(data) if field == REPLAY else RowFilter.of(data)
        try:
            with path.open("rb") as lines:
                check_dataset(
                    lines,
                    filters=RowFilter() if keep_all else filters,
                    strict=data.mode is DataMode.STRICT,
                    param=f"data.{field}",
                    path=path,
                    read=read,
                )
        except DatasetInvalid as error:
            error.remedy = with_file(error.remedy, path)
            raise


def refuse_retracted_rows(file: Path | None) -> Path | None:
    """Return a file; end the command with ``CORPUS_ROWS_RETRACTED`` if it is a shard of a pull with retracted keys."""
    if file is not None and file.name.startswith("part-"):
        from corpus.sources import refuse_retracted  # numpy is slow to import

        try:
            refuse_retracted(file)
        except MensError as error:
            fail_with(error)
    return file


def refuse_other_file(file: Path | None) -> Path | None:
    """Return a training file; refuse a recipe of a corpus with the command that makes the file, and rows of retracted keys.

    Raises:
        BadParameter: the file is YAML.
    """
    refuse_retracted_rows(file)
    if file is None or file.suffix not in (".yaml", ".yml") or not file.is_file():
        return file
    text = file.read_text(errors="replace")
    keys = {line.partition(":")[0] for line in text.splitlines()}
    command = "corpus mix" if "sources" in keys else "generate-data" if "columns" in keys else "corpus build"
    raise typer.BadParameter(
        f"{file} is not a training file. If it is a recipe, first run `mens {command} {file}`, then name the file that "
        f"it writes."
    )


def training_file(description: str) -> Any:
    """Return an option for a file with training rows, which must exist; see ``refuse_folders``."""
    return typer.Option(exists=True, callback=refuse_retracted_rows, help=description)


def refuse_folders(files: Mapping[str, Path | None]) -> dict[str, Path]:
    """Return the data files that are given; end the command if one is a folder, with its form and the command that
    makes a file of it.

    It is not a callback of the options: those may run before that of ``--json``.

    Args:
        files: files by the contract field that names them.
    """
    paths = {field: path for field, path in files.items() if path}
    for field, path in paths.items():
        if path.is_dir():
            advice = advise_on_folder(path)
            error = InvalidRequest(
                Code.REQUEST_INVALID,
                f"{path} {advice.finding}.",
                remedy=with_file(advice.remedy, path),
                param=f"data.{field}",
            )
            fail_with(error)
    return paths


class RequestUploads:
    """Files that one request names. Each upload is a separate file, so no other request uses the files of a refused
    one.
    """

    def __init__(self) -> None:
        self._ids: list[str] = []

    def add(self, path: Path) -> str:
        """Upload a file; return its id. End the command if it is refused."""
        with path.open("rb") as file:
            return self._add(path.name, file)

    def add_text(self, name: str, text: str) -> str:
        """Upload a string as a file of that name; return its id. End the command if it is refused."""
        return self._add(name, text.encode())

    def send(self, path: str, **request: Any) -> Any:
        """Return the JSON body of the response to a POST; if it is refused, delete the files and end the command.

        After an outage the files are kept, because the request may have been accepted.
        """
        response = send("POST", path, **request)
        if response.is_client_error:
            self._delete()
        if response.is_error:
            fail_with_response(response)
        return response.json()

    def _add(self, name: str, content: IO[bytes] | bytes) -> str:
        uploaded = self.send("/v1/files", data={"purpose": "fine-tune"}, files={"file": (name, content)})
        self._ids.append(str(uploaded["id"]))
        return self._ids[-1]

    def _delete(self) -> None:
        with connect().client() as client:
            for file_id in self._ids:
                # An outage here must not hide why the request was refused.
                try:
                    status = client.delete(f"/v1/files/{file_id}").status_code
                except httpx.HTTPError:
                    status = HTTPStatus.SERVICE_UNAVAILABLE
                is_gone = status < HTTPStatus.BAD_REQUEST or status == HTTPStatus.NOT_FOUND
                what = "was deleted" if is_gone else "could not be deleted"
                note(f"the request was refused; its uploaded file {file_id} {what}")
