"""Logging of every process: one plain line or JSON object per record, on stderr, with ids and without secrets."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any, Literal

from shared.observability.log_context import current_ids

LogFormat = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
REDACTED = "[redacted]"
SECRETS = re.compile(
    r"(?P<before>\b[Bb]earer\s+)[^\s\"'\\,}]+"
    r"|(?P<url>://[^/\s:@\"]*:)[^\s/@\"]+(?=@)"
    r"|\bmens-[A-Za-z0-9_-]{43,}"
    r"|\b(?:sk|hf)[-_][A-Za-z0-9_-]{20,}"
)
"""Bearer tokens, passwords in URLs, Mens' own keys (`shared/database/callers/key_secrets.py`), OpenAI's and the hub's."""

MARKS = ("earer", "://", "mens-", "sk-", "sk_", "hf-", "hf_")
"""Substrings of which every match of the pattern contains at least one; most lines contain none and are not searched.
"""


def redact(text: str) -> str:
    """Remove apparent secrets from a log line. Log lines should never contain any; this is for errors that quote a URL
    or a header.
    """
    if not any(mark in text for mark in MARKS):
        return text
    return SECRETS.sub(lambda match: (match["before"] or match["url"] or "") + REDACTED, text)


class TextFormatter(logging.Formatter):
    """Writes one line per record, followed by its traceback."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return redact(super().format(record))


def json_formatter() -> logging.Formatter:
    """Make a formatter that writes one JSON object per record: time, level, logger, message, current ids, and the
    record's own fields.

    A factory, for `logging.config` too (vLLM's and uvicorn's loggers; `serving/launch/json_logging.json`).
    """
    from pythonjsonlogger.core import RESERVED_ATTRS
    from pythonjsonlogger.msgspec import MsgspecFormatter

    class JsonFormatter(MsgspecFormatter):
        def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
            log_data["time"] = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
            log_data["level"], log_data["logger"] = record.levelname, record.name
            log_data.update(current_ids())
            super().add_fields(log_data, record, message_dict)

        def format(self, record: logging.LogRecord) -> str:
            return redact(super().format(record))

    return JsonFormatter(
        "%(message)s", reserved_attrs=[*RESERVED_ATTRS, "color_message", "vllm_process_name", "fileinfo"]
    )


def configure_logging(kind: LogFormat, level: int = logging.WARNING) -> None:
    """Make the root logger write in this format, and route the libraries' own loggers through it.

    Args:
        kind: the setting.
        level: level of the root logger.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(json_formatter() if kind == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level, force=True)
