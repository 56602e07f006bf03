"""OpenAI's own client, which differs between major versions: everything in it that this service supports."""

from __future__ import annotations

import json

import openai
from conversation import (
    BASE,
    COLOUR,
    COLOURS,
    COUNT,
    COUNTED,
    GET_WEATHER,
    KEY,
    LIMITED_KEY,
    MODEL,
    PAINT,
    READ,
    RESULT,
    TUNED,
    URL,
    WEATHER,
    Colour,
    raises,
    user,
)

client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, _strict_response_validation=True)


def ask(text, model=MODEL, **more):
    return client.chat.completions.create(model=model, messages=user(text), temperature=0, max_tokens=64, **more)


def calls(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def chat():
    answer = ask(COUNT)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (COUNTED, "stop")
    *chunks, last = ask(COUNT, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == COUNTED
    assert last.usage.completion_tokens == answer.usage.completion_tokens


def tools():
    called = ask(WEATHER, tools=[GET_WEATHER]).choices[0].message
    assert calls(called) == [("get_weather", {"location": "Paris"})], called
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": RESULT}
    turns = [*user(WEATHER), called.model_dump(exclude_none=True), result]
    read = client.chat.completions.create(model=MODEL, messages=turns, tools=[GET_WEATHER], temperature=0)
    assert read.choices[0].message.content == READ, read
    deltas = [chunk.choices[0].delta for chunk in ask(WEATHER, tools=[GET_WEATHER], stream=True)]
    written = [call.function.arguments or "" for delta in deltas for call in delta.tool_calls or []]
    assert json.loads("".join(written)) == {"location": "Paris"}
    for choice in ("required", {"type": "function", "function": {"name": "paint"}}):
        ((name, arguments),) = calls(ask(COUNT, BASE, tools=[PAINT], tool_choice=choice).choices[0].message)
        assert (name, arguments["colour"] in COLOURS) == ("paint", True)


def structured_output():
    schema = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR, "strict": True}}
    assert json.loads(ask(COUNT, BASE, response_format=schema).choices[0].message.content)["colour"] in COLOURS
    parse = client.beta.chat.completions.parse if openai.VERSION < "2" else client.chat.completions.parse
    parsed = parse(model=BASE, messages=user(COUNT), response_format=Colour, temperature=0)
    assert parsed.choices[0].message.parsed.colour in COLOURS


def responses():
    whole = client.responses.create(model=MODEL, input=COUNT, temperature=0)
    assert (whole.output_text, whole.status) == (COUNTED, "completed")
    with client.responses.stream(model=MODEL, input=COUNT, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == stream.get_final_response().output_text == COUNTED


def files_and_jobs():
    with TUNED.open("rb") as content:
        file = client.files.create(file=content, purpose="fine-tune")
    assert (file.bytes, file.filename) == (TUNED.stat().st_size, TUNED.name)
    assert client.files.content(file.id).read() == TUNED.read_bytes()
    assert client.files.list(limit=1).data[0].id == file.id
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 50}}}
    job = client.fine_tuning.jobs.create(model=BASE, training_file=file.id, suffix="stranger", method=method)
    assert (job.hyperparameters.n_epochs, job.training_file) == (50, file.id)
    assert client.fine_tuning.jobs.cancel(job.id).id == job.id
    assert client.fine_tuning.jobs.list_events(job.id).data[-1].message == "Job created and queued."
    assert client.fine_tuning.jobs.list(limit=1).data[0].id == job.id


def models():
    names = [model.id for model in client.models.list()]
    assert MODEL in names
    assert client.models.retrieve(BASE).id == BASE


def errors():
    with raises(openai.NotFoundError, "nobody"):
        ask(COUNT, "nobody")
    with raises(openai.BadRequestError, "temperature"):
        client.chat.completions.create(model=MODEL, messages=user(COUNT), temperature=-1)
    with raises(openai.AuthenticationError):
        client.with_options(api_key="mens-wrong").models.list()
    with raises(openai.RateLimitError):
        for _ in range(2):
            limited = client.with_options(api_key=LIMITED_KEY).chat.completions
            limited.create(model=MODEL, messages=user(COUNT), max_tokens=1)


for check in (chat, tools, structured_output, responses, files_and_jobs, models, errors):
    check()
print("all is well")
