"""Secrets: all planted ones are found, our own pages and sources contain none, and no text takes long."""

from __future__ import annotations

import random
import re
import string
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.filters.secrets import find_secrets, texts_with_secrets

ROOT = Path(__file__).resolve().parents[3]
DRAW = random.Random(7)
HEX, UPPER, WORD = "0123456789abcdef", string.ascii_uppercase + "234567", string.ascii_letters + string.digits


def drawn(length: int, alphabet: str = WORD) -> str:
    return "".join(DRAW.choice(alphabet) for _ in range(length))


# Joined at run time: a scanner of this repository must find none of them.
PLANTED = {
    "anthropic": ["sk-" + "ant-api03-" + drawn(80)],
    "atlassian": ["ATATT" + "3xFfGF0" + drawn(60)],
    "aws": ["AK" + "IA" + drawn(16, UPPER), "AS" + "IA" + drawn(16, UPPER)],
    "databricks": ["da" + "pi" + drawn(32, HEX)],
    "digitalocean": ["dop" + "_v1_" + drawn(64, HEX)],
    "discord": ["M" + drawn(25) + "." + drawn(6) + "." + drawn(38)],
    "docker": ["dckr" + "_pat_" + drawn(27)],
    "figma": ["figd" + "_" + drawn(40)],
    "github": ["gh" + f"{kind}_" + drawn(36) for kind in "pousr"] + ["github" + "_pat_" + drawn(22) + "_" + drawn(59)],
    "gitlab": ["gl" + "pat-" + drawn(20), "gl" + "rt-" + drawn(20)],
    "google": ["AI" + "za" + drawn(35), "GOC" + "SPX-" + drawn(28), "ya" + "29." + drawn(60)],
    "grafana": ["gl" + "sa_" + drawn(32) + "_" + drawn(8, HEX)],
    "hashicorp": ["hv" + "s." + drawn(24)],
    "huggingface": ["h" + "f_" + drawn(34)],
    "jwt": ["ey" + "J" + drawn(30) + ".ey" + "J" + drawn(60) + "." + drawn(43)],
    "linear": ["lin" + "_api_" + drawn(40)],
    "mailchimp": [drawn(32, HEX) + "-us" + "12"],
    "mens": ["me" + "ns-" + drawn(43)],
    "newrelic": ["NR" + "AK-" + drawn(27, UPPER)],
    "npm": ["np" + "m_" + drawn(36)],
    "nvidia": ["nv" + "api-" + drawn(64)],
    "openai": ["s" + "k-" + drawn(48), "s" + "k-proj-" + drawn(74), "s" + "k-" + drawn(20) + "T3Blbk" + "FJ" + drawn(20)],
    "perplexity": ["pp" + "lx-" + drawn(48)],
    "postman": ["PM" + "AK-" + drawn(24, HEX) + "-" + drawn(34, HEX)],
    "pulumi": ["pu" + "l-" + drawn(40, HEX)],
    "pypi": ["py" + "pi-AgE" + drawn(80)],
    "rubygems": ["ruby" + "gems_" + drawn(48, HEX)],
    "sendgrid": ["S" + "G." + drawn(22) + "." + drawn(43)],
    "sendinblue": ["xkey" + "sib-" + drawn(64, HEX) + "-" + drawn(16)],
    "sentry": ["sn" + "trys_" + drawn(60)],
    "shopify": ["shp" + "at_" + drawn(32, HEX)],
    "slack": ["xo" + "xb-" + drawn(12, "0123456789") + "-" + drawn(24), "hooks.slack" + ".com/services/T" + drawn(8) + "/B" + drawn(8) + "/" + drawn(24)],
    "square": ["sq" + "0atp-" + drawn(22)],
    "stripe": ["s" + "k_live_" + drawn(24), "r" + "k_live_" + drawn(24), "wh" + "sec_" + drawn(32)],
    "tailscale": ["ts" + "key-auth-" + drawn(12) + "-" + drawn(24)],
    "telegram": ["123" + drawn(6, "0123456789") + ":AA" + drawn(33)],
    "twilio": ["S" + "K" + drawn(32, HEX)],
    "vercel": ["vc" + "p_" + drawn(56)],
    "xai": ["x" + "ai-" + drawn(80)],
    "age": ["AGE-" + "SECRET-KEY-1" + drawn(58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L")],
    "azure": ["Account" + "Key=" + drawn(86) + "=="],
    "private_key": [
        f"-----BEGIN {kind}PRIVATE " + "KEY-----\n" + drawn(64) for kind in ("", "RSA ", "OPENSSH ", "EC ", "ENCRYPTED ")
    ],
    "url_password": ["postgresql://ann:" + drawn(12) + "@db.internal/x", "https://:" + drawn(9) + "@host"],
    "random_value": [
        'api_key = "' + drawn(32) + '"', "SECRET=" + drawn(40), '"password": "' + drawn(20) + '"', "token: " + drawn(24),
        "aws_secret_access_key = " + drawn(40), "X-Api-Key: " + drawn(32), "client_secret=" + drawn(48, HEX), "'auth_token' => '" + drawn(30) + "'",
    ],
}  # fmt: skip
INNOCENT = [
    "api_key = os.environ['MENS_API_KEY']", "token = tokenizer.encode(text)[0]", "key=lambda row: row.created_at_in_seconds",
    "password: ${POSTGRES_PASSWORD}", "postgresql://mens:password@postgres/mens", "https://user:${PASSWORD}@host", "https://host:8080/a@b",
    "secret_name = the-name-of-a-kubernetes-secret", "s" + "k-your-key-goes-here-0000000000", "sort_key = 'created_at_descending_2'",
    "AK" + "IAIOSFODNN7EXAMPLE", "sha256 = 9f86d081884c7d659a2feaa0c55ad015", "public_key_path=/etc/ssl/certs/ca-certificates.crt",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "secret"), [(kind, secret) for kind, found in PLANTED.items() for secret in found])
def test_planted_secret_is_found_wherever_it_stands(kind: str, secret: str) -> None:
    places = ["{}", "before {} after", 'x = "{}"', "line\n{}\nline", "({})", "日本{} 語"]
    # A name next to it may make it a value of a key word too, so that the rule found first is another one.
    assert texts_with_secrets([place.format(secret) for place in places]).keys() == set(range(len(places)))
    assert kind in {span.kind for span in find_secrets(f" {secret} ")}


def test_sixty_are_planted() -> None:
    assert sum(map(len, PLANTED.values())) >= 60


@pytest.mark.parametrize("text", INNOCENT)
def test_what_only_looks_like_it_is_not_found(text: str) -> None:
    assert not find_secrets(text)


def test_our_pages_and_sources_hold_none() -> None:
    files = [
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        *(ROOT / "shared").rglob("*.py"),
        *(ROOT / "examples").rglob("*.jsonl"),
    ]
    lines = {f"{path}:{n}": line for path in files for n, line in enumerate(path.read_text().splitlines(), 1)}
    found = texts_with_secrets(list(lines.values()))
    assert len(lines) > 2000
    assert not {list(lines)[number]: kinds for number, kinds in found.items()}


def test_texts_are_judged_one_by_one() -> None:
    secret = PLANTED["npm"][0]
    assert texts_with_secrets([secret[:20], secret[20:], "", secret]).keys() == {3}
    assert texts_with_secrets([]) == {}


HOSTILE: list[Callable[[int], str]] = [
    lambda n: "a" * n, lambda n: "sk-" * (n // 3), lambda n: "eyJ" + "a" * n, lambda n: ("eyJ" + "a" * 20 + ".") * (n // 24),
    lambda n: "://" * (n // 3), lambda n: "://a:" * (n // 5), lambda n: "://a:" + "b" * n, lambda n: "-----BEGIN " * (n // 11),
    lambda n: "-----BEGIN " + "A " * (n // 2), lambda n: "key=" * (n // 4), lambda n: "key=" + "a1" * (n // 2), lambda n: "=" * n,
    lambda n: "xoxb-" + "a-" * (n // 2), lambda n: "xapp-1-" + "A" * n, lambda n: "tskey-a-" + "a-" * (n // 2), lambda n: "sk-ant-" + "a" * n,
    lambda n: ("M" + "a" * 23 + ".") * (n // 25), lambda n: "hooks.slack.com/services/" * (n // 25),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_text_takes_linear_time(number: int) -> None:
    """Ten times the text takes about ten times as long; a hundred times would be quadratic."""

    def seconds(length: int) -> float:
        text, best = HOSTILE[number](length), float("inf")
        for _ in range(2):
            start = time.process_time()
            find_secrets(text)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(100_000) < 40 * seconds(10_000) + 0.05


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_place_of_a_secret_is_counted_in_characters(before: str, after: str) -> None:
    secret = PLANTED["github"][0]
    found = find_secrets(f"{before} {secret} {after} é{secret}")
    starts = [len(before) + 1, len(before) + len(secret) + len(after) + 4]
    assert {(start, start + len(secret)) for start in starts} <= {(span.start, span.end) for span in found}


ASSIGNMENT = re.compile(r"[:=]>?[ \t]{0,3}[\"'`]?(?P<value>[A-Za-z0-9+/_~-]{16,512}={0,2})")
AFTER_KEY = re.compile(r"key[\"'`\])]{0,2}[ \t]{0,8}:?$")
SIGNS = ("=", "==", ":", "::", " = ", ": ", "=>", " => '", "=:", "=\n", ":\t\t\t", "=    ", "= >", '="', "='\n")
SIXTEEN, THIRTY = drawn(16), drawn(28) + "/+"
VALUES = (
    "short",
    "short=",
    SIXTEEN[:-1],
    SIXTEEN,
    SIXTEEN + "=",
    SIXTEEN + "==",
    SIXTEEN + "===",
    THIRTY,
    20 * THIRTY,
    "é" + THIRTY,
)


@given(
    st.lists(st.tuples(st.sampled_from(("key", "\nkey'", " ", "")), st.sampled_from(SIGNS), st.sampled_from(VALUES)))
)
def test_values_are_those_of_one_expression(parts: list[tuple[str, str, str]]) -> None:
    """The search begins at long runs; an expression for sign and value together finds the same."""
    text = "".join(piece for part in parts for piece in part)
    expected = [match.span("value") for match in ASSIGNMENT.finditer(text) if AFTER_KEY.search(text[: match.start()])]
    found = [(span.start, span.end) for span in find_secrets(text) if span.kind == "random_value"]
    assert found == expected
