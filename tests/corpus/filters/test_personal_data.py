"""Personal data: each form is found in each place, similar text is not reported, and no text takes long."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.filters.personal_data import PatternRedactor

ROOT = Path(__file__).resolve().parents[3]
KEY = b"a key of a test"
VALUES = {
    "EMAIL": ["ann.lee+x@mail.example.org", "o'neil@example.co.uk", "Jürgen@bücher.example", "ann%40example.org"],
    "PHONE": ["+49 30 901820", "+1 (415) 555-0132", "+442071838750", "+33-1.42/68 53 00"],
    "IBAN": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "NO9386011117947"],
    "CARD": [
        "4111 1111 1111 1111",
        "5500-0000-0000-0004",
        "378282246310005",
        "2223003122003222",
        "4-222 2-2 2222222 2",
    ],
    "IP": ["8.8.4.4", "2606:4700:4700::1111", "2a00:1450:4001:81b:0:0:0:200e"],
    "MAC": ["00:1B:44:11:3a:b7", "00-1B-44-11-3A-B7"],
    "AUTHORIZATION": ["Bearer abcdef0123456789", "Basic YW5uOnNlY3JldA==", "f00df00df00df00df00d"],
}
PLACES = ["{}", "Write to {}.", "({})", "who: {}, and\nothers", '"{}"', "日本 {} 語"]
INNOCENT = [
    "@property", "a @ b", "x@y", "ann@localhost", "1+123456789", "a+4930901820", "+12", "DE89370400440532013001",
    "XX8937040044053201", "4111 1111 1111 1112", "1700000000000", "1411111111111111", "10.0.0.1", "127.0.0.1", "192.168.1.20",
    "v1.2.3.4", "1.2.3.4.5", "999.1.2.3", "fe80::1", "std::vector", "a::b", "10:20:30", "2024-01-02-03", "00:1B:44:11:3a", "2001:db8::1",
    "Authorization: required", "the bearer of this", "123e4567-e89b-12d3-a456-426614174000", "3.14159265358979",
]  # fmt: skip


def redactor(key: bytes = KEY) -> PatternRedactor:
    return PatternRedactor(key)


def in_header(kind: str, value: str) -> str:
    return f"Authorization: {value}" if kind == "AUTHORIZATION" else value


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in VALUES.items() for value in values])
def test_value_is_replaced_wherever_it_stands(kind: str, value: str) -> None:
    texts = [place.format(in_header(kind, value)) for place in PLACES]
    for text, place, result in zip(texts, PLACES, redactor().redact(texts), strict=True):
        before, _, after = place.partition("{}")
        assert value not in result.text
        assert result.counts == {kind: 1}, (text, result)
        assert result.text.startswith(before)
        assert result.text.endswith(after)


@pytest.mark.parametrize("text", INNOCENT)
def test_what_only_looks_like_it_stays(text: str) -> None:
    (result,) = redactor().redact([text])
    assert result.text == text
    assert not result.counts


def test_card_is_found_next_to_other_digits() -> None:
    results = redactor().redact(["2024 4111 1111 1111 1111", "4111111111111111 123", "no 12 4111111111111111"])
    assert [result.counts for result in results] == [{"CARD": 1}] * 3


def test_ibans_and_cards_are_found_among_others() -> None:
    iban, card = "DE89370400440532013000", "4111111111111111"
    text = f"AA11 XX22 {iban} {iban} éAB12 {card}, {card}"
    (result,) = redactor().redact([text])
    assert result.counts == {"IBAN": 2, "CARD": 2}
    assert redactor().redact(["4111 1111", "1111 1111"]) == [("4111 1111", {}), ("1111 1111", {})]


def test_placeholder_is_of_the_value_and_the_key() -> None:
    texts = ["Ann@Example.org, ann@example.org", "bob@example.org", "+49 30 901820 or +4930901820"]
    first, second = redactor().redact(texts), redactor(b"another").redact(texts)
    ann, same_ann = first[0].text.split(", ")
    assert ann == same_ann != first[1].text
    assert len(set(first[2].text.split(" or "))) == 1
    assert first[0].text != second[0].text
    assert ann == redactor().placeholder("EMAIL", "ann@example.org")


def test_each_text_has_its_own_spans() -> None:
    texts = ["ann@example.org", "", "\0", "8.8.8", "8.8 +49", "30 901820", "x\0bob@example.org\0"]
    results = redactor().redact(texts)
    assert [bool(result.counts) for result in results] == [True, False, False, False, False, False, True]
    assert [result.text for result in results[1:6]] == texts[1:6]


@given(st.lists(st.text(alphabet="aB1@.+: -%\0é\n<>_", max_size=40), max_size=6))
def test_texts_do_not_change_each_other_and_twice_is_once(texts: list[str]) -> None:
    together = redactor().redact(texts)
    assert together == [redactor().redact([text])[0] for text in texts]
    assert [result.text for result in redactor().redact([result.text for result in together])] == [
        result.text for result in together
    ]


HOSTILE: list[Callable[[int], str]] = [
    lambda n: "a" * n, lambda n: "a" * n + "@", lambda n: "@" * n, lambda n: "a@" * (n // 2), lambda n: "a." * (n // 2) + "@a",
    lambda n: "@" + "a." * (n // 2), lambda n: "+1" + " 1" * (n // 2), lambda n: "4" * n, lambda n: "4 " * (n // 2),
    lambda n: "4-" * (n // 2), lambda n: "AB12" * (n // 4), lambda n: "DE12" + " A" * (n // 2), lambda n: "1." * (n // 2), lambda n: ":" * n,
    lambda n: "a:" * (n // 2), lambda n: "a-" * (n // 2), lambda n: "aa-" * (n // 3), lambda n: "::" + "a" * n,
    lambda n: "Authorization: " * (n // 15), lambda n: "Bearer " * (n // 7), lambda n: "authorization=" + "a" * n, lambda n: "%40" * (n // 3),
    lambda n: "a@" + "a" * 62 + ("." + "a" * 63) * (n // 64), lambda n: "authorization: digest " * (n // 22),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_text_takes_linear_time(number: int) -> None:
    """Ten times the text takes about ten times as long; a hundred times would be quadratic."""

    def seconds(length: int) -> float:
        text, best = HOSTILE[number](length), float("inf")
        for _ in range(2):
            start = time.process_time()
            redactor().redact([text])
            best = min(best, time.process_time() - start)
        return best

    assert seconds(100_000) < 40 * seconds(10_000) + 0.05


def test_our_own_pages_have_few() -> None:
    """Addresses of the examples and public ones only: no figure of a table is a telephone or a card."""
    lines = [line for page in sorted((ROOT / "docs").rglob("*.md")) for line in page.read_text().splitlines()]
    found = {kind for result in redactor().redact(lines) for kind in result.counts}
    assert found <= {"EMAIL", "AUTHORIZATION", "IP"}
