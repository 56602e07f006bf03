"""Writes `tickets.jsonl` and `tickets.heldout.jsonl`: on-call messages and the ticket that each should become.

    python examples/tickets.py

Everything is drawn by a fixed seed. A company has its services and its cities, so both files have the same ones. The sentences of
the held-out messages, and the wordings of what is wrong, are in no training row.
"""

# ruff: noqa: INP001
from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SYSTEM = "Turn the message into a ticket."
TRAINING_ROWS, HELD_OUT_ROWS = 160, 24
TRAINING_SEED, HELD_OUT_SEED = 1, 2


@dataclass(frozen=True)
class Vocabulary:
    """Parts of messages.

    Attributes:
        problems: wordings of each kind of problem.
        sentences: messages with a place for the service, the problem's wording, the city and the time.
    """

    services: list[str]
    cities: list[str]
    problems: dict[str, list[str]]
    sentences: list[str]


def words(line: str) -> list[str]:
    """Words between white space."""
    return line.split()


SERVICES = words("""
    payments login search checkout invoices mail chat images reports maps billing exports uploads video orders
    profiles alerts calendar backups pricing shipping coupons reviews feeds accounts archive audit-log auth
    avatars balances banners basket blog booking-api cards carts cdn chatbot comments contacts
""")
CITIES = words("""
    Berlin Madrid Oslo Lyon Porto Prague Dublin Vienna Milan Ghent Turin Leeds Basel Riga Gdansk Malmo Sofia
    Athens Bergen Cork Graz Lille Split Tartu Boston Denver Austin Seattle Chicago Dallas Houston Phoenix Miami
    Atlanta Detroit Toronto Montreal Ottawa Vancouver Calgary Lima Bogota Quito Santiago
""")

TRAINING = Vocabulary(
    services=SERVICES,
    cities=CITIES,
    problems={
        "slow": [
            "is very slow",
            "is painfully slow",
            "takes ages to load",
            "needs half a minute for every click",
            "is crawling",
        ],
        "down": [
            "is down",
            "is completely down",
            "does not respond at all",
            "is unreachable",
            "is dead",
        ],
        "errors": [
            "throws errors",
            "returns a 500 on every request",
            "shows an error page",
            "keeps failing with a 502",
            "answers with errors",
        ],
        "stale": [
            "shows old data",
            "has not updated its numbers",
            "still shows yesterday's data",
            "serves stale results",
            "is out of date",
        ],
    },
    sentences=[
        "{service} {problem} for everybody in {city}, started at {since}",
        "Hi, since {since} {service} {problem} in {city}",
        "{city} office here: {service} {problem} since {since}. Please help!",
        "Customers in {city} say that {service} {problem}. First report came in at {since}.",
        "It is {since} and {service} {problem} again, {city} is affected",
        "{since}, {city}: {service} {problem}",
        "Can somebody look at {service}? It {problem} since {since}, all users in {city}",
        "Our {service} page {problem}. We are in {city} and saw it first at {since}.",
        "urgent!! {service} {problem} ({city}, {since})",
        "Since about {since} the {service} service {problem} for our users in {city}.",
        "It began at {since}: in {city} {service} {problem}",
        "{problem}: {service}. Seen by everyone in {city}, first at {since}",
        "Good morning! {service} {problem}. Our people in {city} cannot work since {since}",
        "{service} {problem} and {city} is waiting. Time of the first call: {since}",
    ],
)
HELD_OUT = Vocabulary(
    services=SERVICES,
    cities=CITIES,
    problems={
        "slow": [
            "is really slow today",
            "takes forever to load",
        ],
        "down": [
            "is down again",
            "is not reachable",
        ],
        "errors": [
            "gives an error page",
            "fails with a 500",
        ],
        "stale": [
            "shows data from yesterday",
            "serves old results",
        ],
    },
    sentences=[
        "Hello team, {service} {problem} here in {city}. We noticed it at {since}.",
        "{service} {problem}, several people from {city} called me at {since}",
        "Started at {since}: {service} {problem}. Only {city} seems to be affected.",
        "Is anyone on it? In {city} {service} {problem}, since {since} or so",
    ],
)


def rows(vocabulary: Vocabulary, count: int, seed: int) -> list[dict[str, list[dict[str, str]]]]:
    """Return this many chats, equally many of each kind of problem."""
    draw, kinds = random.Random(seed), list(vocabulary.problems)
    chats = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        since = f"{draw.randrange(24):02}:{draw.randrange(60):02}"
        service, city = draw.choice(vocabulary.services), draw.choice(vocabulary.cities)
        wording = draw.choice(vocabulary.problems[kind])
        message = draw.choice(vocabulary.sentences).format(service=service, problem=wording, city=city, since=since)
        ticket = json.dumps({"service": service, "problem": kind, "since": since, "city": city})
        turns = zip(("system", "user", "assistant"), (SYSTEM, message, ticket), strict=True)
        chats.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    draw.shuffle(chats)
    return chats


def main() -> None:
    """Entry point."""
    for name, vocabulary, count, seed in (
        ("tickets.jsonl", TRAINING, TRAINING_ROWS, TRAINING_SEED),
        ("tickets.heldout.jsonl", HELD_OUT, HELD_OUT_ROWS, HELD_OUT_SEED),
    ):
        (HERE / name).write_text("".join(json.dumps(row) + "\n" for row in rows(vocabulary, count, seed)))


if __name__ == "__main__":
    main()
