"""Calls of the `anthropic` package."""

import time

import anthropic

from libraries.calls import HELLO, LORA, MODEL, PARAMETERS, PIXEL, Calls, collected, refusal

CALLS = Calls()
ASK = [{"role": "user", "content": HELLO}]
SAY = {"name": "say", "input_schema": PARAMETERS}


def client(door: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=door, api_key="unused", max_retries=5)


@CALLS.add("messages.create()", "/v1/messages")
def message(door: str) -> None:
    answer = client(door).messages.create(model=MODEL, max_tokens=8, messages=ASK, system="Be brief.")
    assert answer.content[0].text.strip()
    assert answer.usage.output_tokens == 8
    assert answer.stop_reason == "max_tokens"


@CALLS.add("messages.create(stream=True)", "/v1/messages")
def stream(door: str) -> None:
    events = list(client(door).messages.create(model=MODEL, max_tokens=8, messages=ASK, stream=True))
    assert events[0].type == "message_start"
    assert len(collected(event.delta.text for event in events if event.type == "content_block_delta").split()) == 8
    assert events[-1].type == "message_stop"


@CALLS.add("messages.stream()", "/v1/messages")
def stream_helper(door: str) -> None:
    with client(door).messages.stream(model=MODEL, max_tokens=8, messages=ASK) as events:
        text = collected(events.text_stream)
        final = events.get_final_message()
    assert final.content[0].text == text
    assert final.usage.output_tokens == 8


@CALLS.add("messages.create(tools=…, tool_choice={'type': 'any'})", "/v1/messages")
def tool(door: str) -> None:
    answer = client(door).messages.create(
        model=MODEL, max_tokens=400, messages=ASK, tools=[SAY], tool_choice={"type": "any"}
    )
    assert answer.content[0].name == "say"
    assert answer.content[0].input["text"]
    assert answer.stop_reason == "tool_use"


@CALLS.add("messages.stream(tools=…)", "/v1/messages")
def tool_stream(door: str) -> None:
    with client(door).messages.stream(
        model=MODEL, max_tokens=400, messages=ASK, tools=[SAY], tool_choice={"type": "tool", "name": "say"}
    ) as events:
        final = events.get_final_message()
    assert final.content[0].input["text"]


@CALLS.add("messages.create() with a tool's result", "/v1/messages")
def tool_result(door: str) -> None:
    called = client(door).messages.create(
        model=MODEL, max_tokens=400, messages=ASK, tools=[SAY], tool_choice={"type": "any"}
    )
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "said"}
    answer = client(door).messages.create(
        model=MODEL, max_tokens=8, tools=[SAY],
        messages=[*ASK, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}],
    )  # fmt: skip
    assert answer.content[0].text.strip()


@CALLS.add("messages.create() with an image in Base64", "/v1/messages")
def image(door: str) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    answer = client(door).messages.create(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": parts}])
    assert answer.content[0].text.strip()


@CALLS.add("messages.count_tokens()", "/v1/messages/count_tokens")
def count(door: str) -> None:
    counted = client(door).messages.count_tokens(model=MODEL, messages=ASK)
    more = client(door).messages.count_tokens(model=MODEL, messages=ASK, system="Be brief, and to the point.")
    assert 0 < counted.input_tokens < more.input_tokens


@CALLS.add("models.list()", "/v1/models")
def models(door: str) -> None:
    assert {model.id for model in client(door).models.list()} >= {MODEL, LORA}


@CALLS.add("models.retrieve()", "/v1/models/{name}")
def model(door: str) -> None:
    assert client(door).models.retrieve(MODEL).id == MODEL


def new_batch(door: str) -> anthropic.types.messages.MessageBatch:
    request = {"custom_id": "1", "params": {"model": MODEL, "max_tokens": 8, "messages": ASK}}
    return client(door).messages.batches.create(requests=[request])


@CALLS.add("messages.batches.create()", "/v1/messages/batches")
def batch(door: str) -> None:
    made = new_batch(door)
    for _ in range(600):
        made = client(door).messages.batches.retrieve(made.id)
        if made.processing_status == "ended":
            break
        time.sleep(0.1)
    assert (made.processing_status, made.request_counts.succeeded) == ("ended", 1)
    [answer] = client(door).messages.batches.results(made.id)
    assert answer.result.message.content[0].text.strip()


@CALLS.add("messages.batches.cancel()", "/v1/messages/batches/{id}/cancel")
def cancelled(door: str) -> None:
    made = client(door).messages.batches.cancel(new_batch(door).id)
    assert made.processing_status in ("canceling", "ended")
    for _ in range(600):
        made = client(door).messages.batches.retrieve(made.id)
        if made.processing_status == "ended":
            break
        time.sleep(0.1)
    [answer] = client(door).messages.batches.results(made.id)
    assert answer.result.type in ("canceled", "succeeded")
    assert made.request_counts.canceled + made.request_counts.succeeded == 1


@CALLS.add("messages.batches.list()", "/v1/messages/batches")
def batches(door: str) -> None:
    made = new_batch(door)
    assert made.id in [each.id for each in client(door).messages.batches.list(limit=100)]


@CALLS.add("an unknown model", "/v1/messages", served=False)
def unknown(door: str) -> None:
    refusal(
        anthropic.NotFoundError,
        lambda: client(door).messages.create(model="claude-9", max_tokens=1, messages=ASK),
        MODEL,
    )
