"""Secrets in texts: keys with the prefixes of their providers, private keys, passwords in URLs, and random strings to
the right of a key word.

A unit or a row with a secret is dropped rather than masked, because a masked one would teach a model where to put a
secret.

The prefix rules follow what the providers publish, in the style of gitleaks' rules (MIT). The search looks for long
runs of the characters of keys, which few texts have, and for literals; the expressions are matched only at those places.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence

from corpus.filters.joined_texts import FoundSpan, JoinedTexts

_KEY_CHARACTERS = frozenset(f"{string.ascii_letters}{string.digits}+/_~-".encode())
_KEY, _OTHER = b"x", b" "
_LONG_RUN = 16 * _KEY
_KINDS = b"".join(_KEY if code in _KEY_CHARACTERS else _OTHER for code in range(256))
"""For each byte, whether it is a character of keys."""
_TOKEN = re.compile(r"[\w-]{20,}", re.ASCII)
_PREFIXES = {
    "anthropic": r"sk-ant-[a-z0-9]+-[\w-]{20,}",
    "atlassian": r"ATATT3[\w=-]{40,}",
    "aws": r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![\w-])",
    "cloudflare": r"v1\.0-[a-f0-9]{24}-[a-f0-9]{40,}",
    "databricks": r"dapi[a-f0-9]{32}(?![\w])",
    "digitalocean": r"do[opr]_v1_[a-f0-9]{64}",
    "discord": r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,38}(?![\w-])",
    "docker": r"dckr_(?:pat|oat)_[\w-]{27,}",
    "figma": r"figd_[\w-]{38,}",
    "github": r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    "gitlab": r"gl(?:pat|ptt|dt|rt|cbt|soat|imt|agent)-[\w-]{20,}",
    "google": r"AIza[\w-]{35}(?![\w-])|GOCSPX-[\w-]{28}|(?<=ya29\.)[\w-]{40,}",
    "grafana": r"gl(?:c|sa)_[A-Za-z0-9+/=_]{32,}",
    "hashicorp": r"(?<=hvs\.)[\w-]{24,}|(?<=hvb\.)[\w-]{24,}|(?<=\.atlasv1\.)[\w-]{40,}",
    "huggingface": r"(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "jwt": r"eyJ[\w-]{17,}\.eyJ[\w-]{10,}\.[\w-]{20,}",
    "langchain": r"ls(?:v2)?_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}",
    "linear": r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}",
    "mailchimp": r"[a-f0-9]{32}-us[0-9]{1,2}(?![\w-])",
    "mens": r"mens-[\w-]{43,}",
    "newrelic": r"NRAK-[A-Z0-9]{27}",
    "npm": r"npm_[A-Za-z0-9]{36}",
    "nvidia": r"nvapi-[\w-]{60,}",
    "openai": r"sk-(?:proj|svcacct|admin)-[\w-]{40,}|sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}|sk-[A-Za-z0-9]{48}(?![\w-])",
    "perplexity": r"pplx-[A-Za-z0-9]{48}",
    "postman": r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}",
    "pulumi": r"pul-[a-f0-9]{40}",
    "pypi": r"pypi-AgE[\w-]{50,}",
    "rubygems": r"rubygems_[a-f0-9]{48}",
    "sendgrid": r"(?<=SG\.)[\w-]{22}\.[\w-]{43}",
    "sendinblue": r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}",
    "sentry": r"sntry[su]_[A-Za-z0-9+/=_-]{40,}",
    "shopify": r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    "slack": r"xox[abeoprs]-[A-Za-z0-9-]{20,}|xapp-[0-9]-[A-Z0-9]+-[0-9]+-[a-z0-9]+",
    "square": r"(?:EAAA|sq0[a-z]{3}-)[\w-]{22,60}(?![\w-])",
    "stripe": r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{24,}",
    "telegram": r"(?<=[0-9]{8}:)AA[\w-]{32,34}(?![\w-])",
    "tailscale": r"tskey-[a-z]+-[A-Za-z0-9]+-[A-Za-z0-9]+",
    "twilio": r"SK[a-f0-9]{32}(?![\w])",
    "vercel": r"vc[aipkr]_[A-Za-z0-9]{24,}",
    "xai": r"xai-[A-Za-z0-9]{80}",
    "age": r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}",
}
"""Form of each provider's keys, matched at the beginning of a token."""
_PREFIXED = re.compile("|".join(f"(?P<{name}>{rule})" for name, rule in _PREFIXES.items()), re.ASCII)
_FIRST = frozenset("ABDEGMNOPSabcdefghlmnoprstvwx0123456789")
"""Characters that these begin with, except those that follow a dot or a colon."""
_LITERALS = (
    (
        "private_key",
        re.compile(r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?-----\s{0,8}[\w+/=:, \\-]{16}"),
    ),
    ("slack", re.compile(r"hooks\.slack\.com/(?:services|workflows)/[\w/+-]{30,}", re.ASCII)),
    ("discord", re.compile(r"discord(?:app)?\.com/api/webhooks/[0-9]{17,20}/[\w-]{60,}", re.ASCII)),
    ("azure", re.compile(r"AccountKey=[A-Za-z0-9+/]{64,}={0,2}")),
    ("azure", re.compile(r"SharedAccessKey=[A-Za-z0-9+/]{40,}={0,2}")),
)
_URL_PASSWORD = re.compile(r"://[^\s:@/\"'<>\0]{0,64}:(?P<password>[^\s@/\"'<>\0]{3,256})@[\w\[]")
_SIGN = re.compile(r"[:=]>?[ \t]{0,3}[\"'`]?\Z")
_VALUE = re.compile(r"[A-Za-z0-9+/_~-]{16,512}={0,2}")
MOST_OF_A_SIGN, MOST_OF_A_KEY_WORD = 6, 24
"""Number of characters before a value, and before its sign, that are examined."""
_KEY_WORD = re.compile(r"(?:key|token|secret|passwo?r?d|pwd|credential)s?[\"'`\])]{0,2}[ \t]{0,8}:?$", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"[$%{}*…]|(?i:pass|secret|example|changeme|your|dummy|placeholder|redacted|xxx|1234|abcd|user|pwd|token|test|foo|hunter2)"
    r"|^[A-Z_]+$"
)
_EXAMPLE = re.compile(r"(?i:example|placeholder|redacted|dummy|your[_-]|changeme|xxxx)|(.)\1{7}|123456789|abcdefgh")
ENTROPY_BITS = 3.5
"""Entropy threshold per character: English words are below it, 16 random letters and digits are above it."""
HEX_ENTROPY_BITS = 3.0


def find_secrets(text: str) -> list[FoundSpan]:
    """Return the places of secrets in a text, each with the name of its rule; some may overlap."""
    runs = list(_long_runs(text))
    return [*_prefixed(text, runs), *_literals(text), *_passwords(text), *_random_values(text, runs)]


def texts_with_secrets(texts: Sequence[str]) -> dict[int, set[str]]:
    """Return the numbers of the texts that contain a secret, each with the names of the rules that matched."""
    joined = JoinedTexts(texts)
    spans = joined.by_text(find_secrets(joined.joined))
    return {number: {span.kind for span in text_spans} for number, text_spans in spans.items()}


def _long_runs(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each run of at least 16 characters of keys begins and ends."""
    # One byte for each character. Looking for equal bytes takes a fifth of the time of an expression.
    kinds = text.encode("ascii", "replace").translate(_KINDS)
    start = kinds.find(_LONG_RUN)
    while start >= 0:
        end = kinds.find(_OTHER, start)
        end = len(kinds) if end < 0 else end
        yield start, end
        start = kinds.find(_LONG_RUN, end)


def _prefixed(text: str, runs: Sequence[tuple[int, int]]) -> Iterator[FoundSpan]:
    for run in runs:
        for token in _TOKEN.finditer(text, *run):
            start = token.start()
            is_first = text[start] in _FIRST or text[start - 1 : start] in (".", ":")
            match = _PREFIXED.match(text, start) if is_first else None
            if match and match.lastgroup and not _EXAMPLE.search(match[0]):
                yield FoundSpan(*match.span(), match.lastgroup)


def _literals(text: str) -> Iterator[FoundSpan]:
    for kind, expression in _LITERALS:
        for match in expression.finditer(text):
            if not _EXAMPLE.search(match[0]):
                yield FoundSpan(*match.span(), kind)


def _passwords(text: str) -> Iterator[FoundSpan]:
    for match in _URL_PASSWORD.finditer(text):
        if not _PLACEHOLDER.search(match["password"]):
            yield FoundSpan(*match.span("password"), "url_password")


def _random_values(text: str, runs: Sequence[tuple[int, int]]) -> Iterator[FoundSpan]:
    end = 0
    for start, _ in runs:
        # A sign before `end` pads the previous value.
        sign = _SIGN.search(text, max(end, start - MOST_OF_A_SIGN), start)
        value = _VALUE.match(text, start) if sign else None
        if not (sign and value):
            continue
        end = value.end()
        before = text[max(0, sign.start() - MOST_OF_A_KEY_WORD) : sign.start()]
        if not _KEY_WORD.search(before) or text[end : end + 1] in ("(", ".", "["):
            continue
        if _is_random(value[0]):
            yield FoundSpan(start, end, "random_value")


def _is_random(value: str) -> bool:
    if _EXAMPLE.search(value) or not re.search(r"[0-9]", value) or not re.search(r"[A-Za-z]", value):
        return False
    is_hex = re.fullmatch(r"[0-9a-fA-F-]+", value) is not None
    return _entropy(value) >= (HEX_ENTROPY_BITS if is_hex else ENTROPY_BITS)


def _entropy(text: str) -> float:
    """Shannon entropy of a text's characters, in bits per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())
