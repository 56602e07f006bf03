"""instructor, on OpenAI's client: answers as objects in each of its modes, streamed too, and errors."""

from __future__ import annotations

import instructor
import openai
from conversation import BASE, COLOURS, COUNT, KEY, LIMITED_KEY, URL, Colour, raises, user
from instructor.core import InstructorRetryException


def client(mode="TOOLS", key=KEY):
    return instructor.from_openai(openai.OpenAI(base_url=URL, api_key=key, max_retries=0), mode=instructor.Mode[mode])


def ask(client, model=BASE, kind=Colour, **more):
    given = {"temperature": 0, "max_tokens": 64, "max_retries": 0}
    return client.chat.completions.create(model=model, messages=user(COUNT), response_model=kind, **given | more)


def objects():
    for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"):
        assert ask(client(mode)).colour in COLOURS, mode
    *_, last = client().chat.completions.create_partial(model=BASE, messages=user(COUNT), response_model=Colour)
    assert last.colour in COLOURS


def errors():
    """It retries automatically, and its error contains the client's."""
    with raises(InstructorRetryException, "404", "nobody"):
        ask(client(), "nobody")
    with raises(InstructorRetryException, "401"):
        ask(client(key="mens-wrong"))
    with raises(InstructorRetryException, "429"):
        for _ in range(2):
            ask(client(key=LIMITED_KEY))


for check in (objects, errors):
    check()
print("all is well")
