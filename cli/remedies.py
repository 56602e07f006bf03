"""Remedies in the command line's words: the API says them for who speaks HTTP.

Phrase by phrase rather than code by code, because one code has several remedies. What has no command keeps its route.
"""

from __future__ import annotations

import re

WORDS = {
    r"GET /v1/aliases/([^/\s]+)/history": r"`mens aliases history \1`",
    r"DELETE /v1/aliases/([^\s,]+)": r"`mens aliases delete \1`",
    r"GET /v1/aliases\b": "`mens aliases list`",
    r"GET /v1/(?:models|adapters)\b": "`mens models`",
    r"GET /v1/jobs/(\S+)\.$": r"`mens jobs show \1`.",
    r"GET /v1/jobs\b": "`mens jobs list`",
    r"(?:GET|POST) /v1/keys or ": "",
    r"Upload it with POST /v1/files and use the id it returns": "Give the file itself: `mens train FILE` uploads it",
    r"Send `Authorization: Bearer KEY`": "Set MENS_API_KEY",
    r"Make one with (`mens keys create NAME`)": r"Set MENS_API_KEY to one that an admin made with \1",
    r"Check X-Mens-Tenant": "Check MENS_TENANT and --tenant",
    r"Leave X-Mens-Tenant out": "Leave MENS_TENANT unset",
    r"Leave `tenant` out": "Leave MENS_TENANT unset and --tenant out",
    r"Leave `key_id` out": "Leave --key out",
    r"\(to_version\)": "(--to-version)",
    r"See GET /v1/openapi\.json for what is expected": "See the command's --help for what is expected",
}
"""What the API says, as a pattern, and what the command line says instead; the first ones go first."""


def in_cli_words(remedy: str) -> str:
    """A remedy of the API for who typed a command."""
    for spoken, typed in WORDS.items():
        remedy = re.sub(spoken, typed, remedy)
    return remedy
