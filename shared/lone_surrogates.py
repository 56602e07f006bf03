r"""Half of a surrogate pair in JSON: an escape like ``\ud800`` without its other half.

Python's decoder turns it into a string that cannot be written to a database, a file or a response.
"""

from __future__ import annotations

import json
import re

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_LONE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
    rb"|\xed[\xa0-\xbf]"  # written as bytes, which are invalid UTF-8, but which Python's decoder accepts
)


def has_lone_surrogate(text: bytes) -> bool:
    """Return whether JSON contains half of a surrogate pair; for invalid JSON, whether it seems to.

    Args:
        text: the JSON in UTF-8, or in UTF-16 or UTF-32, which Python's decoder also accepts.
    """
    encoding = json.detect_encoding(text)
    if not encoding.startswith("utf-8"):
        try:
            text = text.decode(encoding, "surrogatepass").encode(errors="surrogatepass")
        except UnicodeDecodeError:
            return False
    if not _SURROGATE.search(text):
        return False
    # An escaped backslash does not begin another escape.
    return bool(_LONE.search(text.replace(rb"\\", b"/")))
