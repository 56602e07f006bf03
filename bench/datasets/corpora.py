"""Files of chats for the data benches: the same chats, written in different ways. All content and all values are made
up.

Every corpus has chats of lognormal length, 85 % English with a few accents, the rest German, French, Russian and Chinese.

- ``plain``: long chats and two labels; nearly every byte is text.
- ``short``: the same with 100 characters per chat, so that the cost of a row counts.
- ``export``: the chats of ``plain`` as chat systems export them (the shape of public sets such as LMSYS-Chat-1M, WildChat
  and OpenAssistant): ids, timestamps, model, client, and moderation scores for every message, all of which a training
  row ignores. A quarter of the bytes is text.
- ``tokens``: the chats of ``plain`` with a log-probability for every token of the assistant's answers, as chat APIs log them.
"""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK_BYTES = 20_000_000
LANGUAGES = {  # share of rows: words
    0.85: "the model learns what data shows and an adapter holds it while training runs on of a in is to we you they "
    'server loss gradient token batch answer question café "quoted" `code` {brackets} break.\n',
    0.05: "Größe für die Antwort naïve données que l'adaptateur garde pendant l'entraînement ein Modell lernt",
    0.06: "модель учится тому что показывают данные и адаптер хранит это пока идёт обучение ответ вопрос",
    0.04: "模型从数据中学习 适配器保存结果 训练继续进行 回答问题 数据 😀",
}
MODERATED = (
    "harassment", "harassment/threatening", "hate", "hate/threatening", "self-harm", "self-harm/instructions",
    "self-harm/intent", "sexual", "sexual/minors", "violence", "violence/graphic",
)  # fmt: skip
TOXICITY = ("toxicity", "severe_toxicity", "obscene", "identity_attack", "insult", "threat", "sexual_explicit")
BAD = (
    b'{"messages": [{"role": "user", "content": "Hi"}]}',
    b'{"messages": [{"role": "robot", "content": "Hi"}]}',
    b'{"prompt": "Hi", "response": "Hello", "rating": 9}',
    b'{"prompt": "Hi", "response": ',
    b"",
)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The form in which chats are written.

    Attributes:
        characters: median length of a chat's content.
        dress: function that adds the fields that a row's source would have added.
    """

    characters: float
    dress: Callable[[random.Random, Row], Row]


def write_file(path: Path, corpus: Corpus, size: int, bad_every: int = 0) -> int:
    """Write a file of about ``size`` bytes: a block of chats is repeated, and each row gets a number.

    Args:
        bad_every: interval of bad lines; 0 makes none.

    Returns:
        Number of its lines.
    """
    # Making a chat takes longer than writing it, so chats repeat; their numbers keep rows from being duplicates.
    lines = list(_lines(corpus, min(size, BLOCK_BYTES)))
    written = number = 0
    with path.open("wb") as file:
        while written < size:
            for line in lines:
                number += 1
                bad = bad_every and number % bad_every == 0
                content = BAD[number // bad_every % len(BAD)] if bad else line.replace(b"@", b"%d" % number)
                written += file.write(content + b"\n")
                if written >= size:
                    break
    return number


def _lines(corpus: Corpus, size: int) -> Iterator[bytes]:
    draw, decoration = random.Random(7), random.Random(11)
    made = 0
    while made < size:
        row, escaped = _chat(draw, corpus.characters), draw.random() < 0.1
        line = json.dumps(corpus.dress(decoration, row), ensure_ascii=escaped).encode()
        made += len(line)
        yield line


def _chat(draw: random.Random, characters: float) -> Row:
    turns: list[Row] = []
    if draw.random() < 0.3:
        turns.append({"role": "system", "content": "You answer briefly and kindly."})
    words = draw.choices(list(LANGUAGES.values()), weights=list(LANGUAGES))[0].split(" ")
    length = min(60_000, draw.lognormvariate(math.log(characters), 1.0))
    count = draw.choice((1, 1, 1, 2, 3))
    for _ in range(count):
        turns.append({"role": "user", "content": "@ " + _text(draw, words, length / count / 3)})
        turns.append({"role": "assistant", "content": _text(draw, words, length / count * 2 / 3)})
    return {"messages": turns, "rating": draw.randint(1, 5), "category": draw.choice(("docs", "code"))}


def _text(draw: random.Random, words: list[str], characters: float) -> str:
    return " ".join(draw.choices(words, k=max(1, round(characters / 6))))


def _plain(_: random.Random, row: Row) -> Row:
    return row


def _export(draw: random.Random, row: Row) -> Row:
    """Return the row with the fields that a chat system adds to a conversation and its messages."""
    messages: list[Row] = []
    for message in row["messages"]:
        parent = messages[-1]["message_id"] if messages else None
        messages.append(
            {
                "message_id": str(uuid.UUID(int=draw.getrandbits(128), version=4)),
                "parent_id": parent,
                **message,
                **_about_message(draw),
            }
        )
    origin = {
        "hashed_ip": _hex(draw, 64),
        "country": draw.choice(("DE", "FR", "US", "CN")),
        "accept_language": "en-US,en;q=0.9",
        "user_agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36",
    }
    return {
        "conversation_id": _hex(draw, 32),
        "model": draw.choice(("large-chat-2026-03", "small-7b-instruct")),
        "timestamp": _timestamp(draw),
        "turn": len(messages),
        "client": origin,
        **row,
        "messages": messages,
        "usage": {"prompt_tokens": draw.randint(10, 900), "completion_tokens": draw.randint(10, 900)},
    }


def _about_message(draw: random.Random) -> Row:
    flags = {name: draw.random() < 0.005 for name in MODERATED}
    scores = {name: _score(draw) for name in MODERATED}
    return {
        "created_at": _timestamp(draw),
        "language": "English",
        "redacted": False,
        "toxic": False,
        "moderation": {"flagged": any(flags.values()), "categories": flags, "category_scores": scores},
        "detoxify": {name: _score(draw) for name in TOXICITY},
    }


def _tokens(draw: random.Random, row: Row) -> Row:
    """Return the row with the log-probabilities of the tokens of the assistant's answers; a word stands for a token."""
    messages: list[Row] = []
    for message in row["messages"]:
        messages.append(message)
        if message["role"] == "assistant":
            content = [
                {"token": word, "logprob": -draw.expovariate(2.0), "bytes": list(word.encode()), "top_logprobs": []}
                for word in message["content"].split(" ")
            ]
            messages[-1] = message | {"logprobs": {"content": content, "refusal": None}}
    return row | {"messages": messages}


def _score(draw: random.Random) -> float:
    return float(10 ** draw.uniform(-7, -1))


def _hex(draw: random.Random, digits: int) -> str:
    return f"{draw.getrandbits(4 * digits):0{digits}x}"


def _timestamp(draw: random.Random) -> str:
    day = f"2026-{draw.randint(1, 11):02}-{draw.randint(1, 28):02}"
    return f"{day}T{draw.randrange(24):02}:{draw.randrange(60):02}:{draw.randrange(60):02}.{draw.randrange(10**6):06}Z"


CORPORA = {
    "plain": Corpus(1_100, _plain),
    "short": Corpus(100, _plain),
    "export": Corpus(1_100, _export),
    "tokens": Corpus(1_100, _tokens),
}
