"""The redactor `patterns`: finds values whose form, including check digits, identifies a person, a machine or an
account.

Each search begins at characters that are rare in texts (``@``, ``+``, two capitals and two digits), and the text that
it then examines is bounded, so that the time is linear in the length of the text.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import string
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import ClassVar

from corpus.filters.joined_texts import FoundSpan, JoinedTexts
from corpus.filters.redacted import Redacted

DIGEST_DIGITS = 4
"""Hex digits of a placeholder. Only a few, because a model learns them; among 300 people, two probably share a
placeholder.
"""

_CAPITAL, _DIGIT, _OTHER = b"A", b"0", b"."
_KINDS = b"".join(
    _CAPITAL if code in string.ascii_uppercase.encode() else _DIGIT if code in string.digits.encode() else _OTHER
    for code in range(256)
)
"""For each byte, whether it is a capital or a digit."""
_DOMAIN = re.compile(r"(?:\w(?:[\w-]{0,61}\w)?\.){1,8}[^\W\d_]{2,63}(?![\w-])")
_LOCAL_PART_REVERSED = re.compile(r"[\w.%+'-]{1,64}")
_TELEPHONE = re.compile(r"\+[1-9](?:[ .\-/()\u00a0]{0,2}[0-9]){7,14}(?![0-9])")
_IBAN_START = 2 * _CAPITAL + 2 * _DIGIT
_CARD = re.compile(r"[2-6](?:[ -]?[0-9]){12,18}(?![0-9])")
_LEAST_CARD = 13 * _DIGIT
_ISSUER = re.compile(r"4|5[1-5]|2[2-7]|3[04-9]|6[0-9]")
_IPV4 = re.compile(r"\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?![\w]|\.[0-9])")
_COLONS = re.compile(r":(?::|(?:[0-9A-Fa-f]{1,4}:){3})")
_HYPHENS = re.compile(r"-(?:[0-9A-Fa-f]{2}-){3}")
_COLON_RUN, _HYPHEN_RUN = re.compile(r"[0-9A-Fa-f:.]*"), re.compile(r"[0-9A-Fa-f-]*")
_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_CREDENTIALS = (
    r"[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?"
    r"(?P<value>(?i:digest)[ \t]{1,4}[^\r\n\0]{1,2048}"
    r"|(?i:bearer|basic|token|negotiate|apikey)[ \t]{1,4}[^\s\"',;\\)}<\0]{1,8192}"
    r"|[^\s\"',;\\)}<\0]{16,8192})"
)
_AUTHORISATIONS = (
    re.compile("uthorization" + _CREDENTIALS),
    re.compile("UTHORIZATION" + _CREDENTIALS),
    re.compile(r"earer[ \t]{1,4}(?P<value>[\w.~+/=-]{16,8192})", re.ASCII),
    re.compile(r"EARER[ \t]{1,4}(?P<value>[\w.~+/=-]{16,8192})", re.ASCII),
)
"""Searching for an expression that begins with a literal is a hundred times as fast as for one that ignores case."""
_IBAN_LENGTHS = {
    15: "NO", 16: "BE", 18: "DK FK FI FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK", 21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
    29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
}  # fmt: skip
"""Registry of ISO 13616: length of an IBAN in characters, and the countries that use this length."""
_LENGTH_OF = {country: length for length, countries in _IBAN_LENGTHS.items() for country in countries.split()}


class PatternRedactor:
    """Replaces values by placeholders such as ``<EMAIL_3f9a>``; equal values get equal placeholders.

    Args:
        key: key of the HMAC that turns a value into a placeholder; without the key, no placeholder can be traced back
            to its value.
    """

    KINDS: ClassVar = ("EMAIL", "PHONE", "IBAN", "CARD", "IP", "MAC", "AUTHORIZATION")

    def __init__(self, key: bytes) -> None:
        self._key = key

    def redact(self, texts: list[str]) -> list[Redacted]:
        """Return each text with placeholders, and their number by kind."""
        joined = JoinedTexts(texts)
        results = list(map(Redacted, texts))
        for number, spans in joined.by_text(personal_data(joined.joined)).items():
            results[number] = self._replace(texts[number], spans)
        return results

    def placeholder(self, kind: str, value: str) -> str:
        """Return the placeholder for a value."""
        digest = hmac.new(self._key, f"{kind}\0{value}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        return f"<{kind}_{digest[:DIGEST_DIGITS]}>"

    def _replace(self, text: str, spans: list[FoundSpan]) -> Redacted:
        pieces, end = [], 0
        for span in spans:
            pieces += [text[end : span.start], self.placeholder(span.kind, span.value)]
            end = span.end
        return Redacted("".join([*pieces, text[end:]]), dict(Counter(span.kind for span in spans)))


def personal_data(text: str) -> list[FoundSpan]:
    """Return the places of personal data in a text, by kind; some may overlap."""
    finders = (_authorisations, _emails, _telephones, _ibans, _cards, _ipv4_addresses, _long_addresses)
    return [span for finder in finders for span in finder(text)]


def _authorisations(text: str) -> Iterator[FoundSpan]:
    for expression in _AUTHORISATIONS:
        for match in expression.finditer(text):
            value = match["value"].rstrip(".")
            yield FoundSpan(match.start("value"), match.start("value") + len(value), "AUTHORIZATION", value)


def _emails(text: str) -> Iterator[FoundSpan]:
    for sign in ("@", "%40"):
        at = text.find(sign)
        while at >= 0:
            local = _LOCAL_PART_REVERSED.match(text[max(0, at - 64) : at][::-1])
            domain = local and _DOMAIN.match(text, at + len(sign))
            if local and domain:
                name = local[0][::-1].lstrip(".%+'-")
                if name:
                    yield FoundSpan(at - len(name), domain.end(), "EMAIL", f"{name}@{domain[0]}".lower())
            at = text.find(sign, at + 1)


def _telephones(text: str) -> Iterator[FoundSpan]:
    for match in _TELEPHONE.finditer(text):
        before = text[match.start() - 1 : match.start()]
        if not before.isalnum() and before != "+":
            yield FoundSpan(*match.span(), "PHONE", re.sub(r"[^0-9]", "", match[0]))


def _ibans(text: str) -> Iterator[FoundSpan]:
    # One byte for each character. Looking for equal bytes takes half of the time of an expression.
    kinds = text.encode("ascii", "replace").translate(_KINDS)
    start = kinds.find(_IBAN_START)
    while start >= 0:
        length = _LENGTH_OF.get(text[start : start + 2])
        if length and not text[start - 1 : start].isalnum():
            rest = _iban_rest(length).match(text, start + len(_IBAN_START))
            if rest:
                compact = text[start : rest.end()].replace(" ", "")
                if int("".join(str(int(sign, 36)) for sign in compact[4:] + compact[:4])) % 97 == 1:
                    yield FoundSpan(start, rest.end(), "IBAN", compact)
        start = kinds.find(_IBAN_START, start + len(_IBAN_START))


@lru_cache(maxsize=32)
def _iban_rest(length: int) -> re.Pattern[str]:
    return re.compile(rf"(?: ?[A-Z0-9]){{{length - 4}}}(?![A-Za-z0-9])")


def _cards(text: str) -> Iterator[FoundSpan]:
    # Most texts have no thirteen digits with nothing else between them.
    if _LEAST_CARD not in text.encode("ascii", "replace").translate(_KINDS, b" -"):
        return
    match = _CARD.search(text)
    while match:
        start, position = match.start(), match.start() + 1
        before = text[start - 1 : start]
        if not before.isalnum() and before != "." and _ISSUER.match(match[0]):
            # Digits of something else may follow after a space, so that the card ends at one of the groups' ends.
            ends = [group.end() for group in re.finditer(r"[0-9]+", match[0])]
            for end in reversed(ends):
                digits = re.sub(r"[ -]", "", match[0][:end])
                if len(digits) >= 13 and _passes_luhn(digits):
                    position = start + end
                    yield FoundSpan(start, position, "CARD", digits)
                    break
            else:
                position = start + ends[0]
        match = _CARD.search(text, position)


def _passes_luhn(digits: str) -> bool:
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[::2]) + sum(sum(divmod(2 * value, 10)) for value in values[1::2])) % 10 == 0


def _ipv4_addresses(text: str) -> Iterator[FoundSpan]:
    for match in _IPV4.finditer(text):
        first = re.match(r"[0-9]{1,3}(?![\w.])", text[max(0, match.start() - 4) : match.start()][::-1])
        if first:
            start = match.start() - first.end()
            yield from _public(text[start : match.end()], start)


def _long_addresses(text: str) -> Iterator[FoundSpan]:
    """IPv6 and MAC addresses."""
    for anchor, run in ((_COLONS, _COLON_RUN), (_HYPHENS, _HYPHEN_RUN)):
        match = anchor.search(text)
        while match:
            left = run.match(text[max(0, match.start() - 48) : match.start()][::-1])
            right = run.match(text, match.start())
            assert left and right
            start = match.start() - left.end()
            address = text[start : right.end()].rstrip(".")
            address = address if address.endswith("::") else address.rstrip(":-")
            end = start + len(address)
            if not _is_word(text[start - 1 : start]) and not _is_word(text[end : end + 1]):
                if _MAC.fullmatch(address):
                    yield FoundSpan(start, end, "MAC", address.replace("-", ":").lower())
                elif len(address) <= 45 and address.count(":") >= 2:
                    yield from _public(address, start)
            match = anchor.search(text, right.end())


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _public(written: str, start: int) -> Iterator[FoundSpan]:
    try:
        address = ipaddress.ip_address(written)
    except ValueError:
        return
    if address.is_global and (address.version == 4 or address in _GLOBAL_UNICAST):
        yield FoundSpan(start, start + len(written), "IP", str(address))
