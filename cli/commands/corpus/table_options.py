"""Options of commands that pull rows from a table, and the pull that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import Code, InvalidRequest, NotFound

if TYPE_CHECKING:  # SQLAlchemy takes half a second to import
    from corpus.reading.addresses import SourceAddress
    from corpus.reading.pull import PullReport
    from corpus.reading.pull_spec import PullSpec

PANEL = "From a table"

FromTable = Annotated[
    str | None,
    typer.Option(
        "--from-table",
        metavar="NAME|FILE",
        rich_help_panel=PANEL,
        help="Train on rows of a database: its name in MENS_CORPUS_SOURCES, or the path of an SQLite file. With --sql.",
    ),
]
SqlOption = Annotated[
    str | None,
    typer.Option(
        "--sql",
        metavar="SELECT|FILE",
        rich_help_panel=PANEL,
        help=(
            "One SELECT, or a .sql file with it. Its columns are the key, `prompt` and `response`, or those that "
            "--row names."
        ),
    ),
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="COLUMN",
        rich_help_panel=PANEL,
        help=(
            "Column that identifies a row, such as the primary key; repeat it for a key of several columns. Default: "
            "id."
        ),
    ),
]
WatermarkOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        rich_help_panel=PANEL,
        help=(
            "Column with the time of a row's last change, so that the next pull reads only new rows. Default: every "
            "pull reads all rows."
        ),
    ),
]
LagOption = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        rich_help_panel=PANEL,
        help=(
            "With --watermark: leave rows newer than this for the next pull, because older transactions may still be "
            "committed: 90s, 10m, 2h."
        ),
    ),
]
RowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--row",
        metavar="KEY=TEMPLATE",
        rich_help_panel=PANEL,
        help="A key of the training row, such as 'prompt={{ item.question }}' or category=support; may be repeated.",
    ),
]
RedactOption = Annotated[
    list[str] | None,
    typer.Option(
        "--redact",
        metavar="REDACTOR",
        rich_help_panel=PANEL,
        help=(
            "Replace personal data before anything is written: by patterns, a file of rules or a plug-in; `none` "
            "replaces nothing. May be repeated. Default: patterns."
        ),
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url-env",
        metavar="VARIABLE",
        rich_help_panel=PANEL,
        help="Environment variable with the URL of the database, instead of MENS_CORPUS_SOURCES.",
    ),
]


@dataclass(frozen=True)
class TableOptions:
    """The options of a command line, as typed."""

    source: str
    sql: str | None
    key: list[str] | None = None
    watermark: str | None = None
    lag: str = "10m"
    row: list[str] | None = None
    redact: list[str] | None = None
    url_env: str | None = None
    license: str | None = None

    def spec(self) -> PullSpec:
        """Return the description of the pull.

        Raises:
            InvalidRequest: ``CORPUS_RECIPE_INVALID``, ``CORPUS_QUERY_INVALID``.
        """
        from corpus.reading.pull_spec import PullSpec

        section: dict[str, Any] = {
            "source": self.source,
            "sql": self._sql(),
            "key": self.key or ["id"],
            "lag": self.lag,
        }
        section |= {"watermark": self.watermark, "license": self.license}
        if self.row:
            section["row"] = dict(map(_template, self.row))
        if self.redact:
            section["redact"] = [name for name in self.redact if name != "none"]
        return PullSpec.of(section)

    def address(self) -> SourceAddress:
        """Return the address of the source.

        Raises:
            NotFound: ``CORPUS_SOURCE_UNKNOWN``.
            InvalidRequest: ``SETTINGS_INVALID``.
        """
        import os

        from corpus.reading.addresses import address_of, find_address
        from shared.settings import Settings, read_settings

        if self.url_env is None:
            return find_address(self.source, read_settings(Settings).corpus_sources)
        if url := os.environ.get(self.url_env):
            return address_of(self.source, url, self.url_env)
        raise NotFound(
            Code.CORPUS_SOURCE_UNKNOWN,
            f"The environment variable {self.url_env} is not set.",
            remedy=f"export {self.url_env}='postgresql://user:password@host/database'",
            param="url_env",
        )

    def folder(self) -> Path:
        """Return the folder of the source's rows, if no other is named."""
        return Path("pulled") / Path(self.source).stem

    def pull(self, folder: Path) -> PullReport:
        """Pull into a folder.

        Raises:
            MensError: as ``pull.py:pull``.
        """
        from corpus.filters.placeholder_key import find_key
        from corpus.reading.pull import pull

        spec = self.spec()
        return pull(spec, self.address(), folder, redaction_key=find_key(spec.redact))

    def _sql(self) -> str:
        if self.sql:
            return self.sql
        raise InvalidRequest(
            Code.CORPUS_QUERY_INVALID,
            "--sql is missing.",
            remedy='Write --sql "SELECT id, question AS prompt, answer AS response FROM tickets", or name a .sql file.',
            param="sql",
        )


def describe_pull(report: PullReport, folder: Path) -> list[str]:
    """Return the lines that describe a pull."""
    from shared.counted_nouns import counted

    lines = [
        (
            f"pulled {counted(report.rows, 'new row')} in {report.seconds:.1f} s; {folder} has "
            f"{counted(report.total, 'row')}"
        )
    ]
    if report.redactions:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.redactions.items()))
        lines.append(f"replaced personal data: {kinds}")
    if report.dropped:
        lines.append(f"left out: {', '.join(f'{count} {reason}' for reason, count in sorted(report.dropped.items()))}")
    return lines + [f"note: {note}" for note in report.notes]


def _template(written: str) -> tuple[str, Any]:
    key, equals, template = written.partition("=")
    if not equals:
        raise InvalidRequest(
            Code.CORPUS_RECIPE_INVALID,
            f"--row {written!r} is not KEY=TEMPLATE.",
            remedy="Write --row 'prompt={{ item.question }}'.",
            param="row",
        )
    if template[:1] in ("[", "{") and not template.startswith("{{"):
        import msgspec

        try:
            return key, msgspec.json.decode(template)
        except msgspec.DecodeError:
            pass  # a text that begins with a bracket
    return key, template
