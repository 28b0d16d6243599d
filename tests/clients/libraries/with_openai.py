"""Calls of the `openai` package."""

import base64
import json
import struct
import time
from io import BytesIO

import openai
from pydantic import BaseModel

from libraries.calls import HELLO, LORA, MODEL, PARAMETERS, PIXEL, WEATHER, Calls, collected, refusal

CALLS = Calls()
SAY = {"type": "function", "function": {"name": "say", "description": "Says it.", "parameters": PARAMETERS}}
ASK = [{"role": "user", "content": HELLO}]


class Weather(BaseModel):
    """A structured answer."""

    city: str
    sky: str


def client(door: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{door}/v1", api_key="unused", max_retries=5)


@CALLS.add("chat.completions.create()", "/v1/chat/completions")
def chat(door: str) -> None:
    answer = client(door).chat.completions.create(model=MODEL, messages=ASK, max_tokens=8)
    assert answer.model == MODEL
    assert answer.choices[0].message.content.strip()
    assert answer.usage.completion_tokens == 8


@CALLS.add("chat.completions.create(stream=True)", "/v1/chat/completions")
def stream(door: str) -> None:
    chunks = client(door).chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, stream=True)
    assert len(collected(chunk.choices[0].delta.content for chunk in chunks).split()) == 8


@CALLS.add("chat.completions.create(stream_options={'include_usage': True})", "/v1/chat/completions")
def stream_usage(door: str) -> None:
    chunks = client(door).chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    last = list(chunks)[-1]
    assert last.usage.completion_tokens == 8
    assert last.usage.prompt_tokens > 0


@CALLS.add("chat.completions.create(tools=…)", "/v1/chat/completions")
def tools(door: str) -> None:
    answer = client(door).chat.completions.create(model=MODEL, messages=ASK, tools=[SAY], tool_choice="auto")
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in {"stop", "length"}


@CALLS.add("chat.completions.create(tool_choice='required')", "/v1/chat/completions")
def tool_required(door: str) -> None:
    answer = client(door).chat.completions.create(model=MODEL, messages=ASK, tools=[SAY], tool_choice="required")
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "say"
    assert json.loads(call.function.arguments)["text"]
    assert answer.choices[0].finish_reason == "tool_calls"


@CALLS.add("chat.completions.create(tool_choice={'function': …})", "/v1/chat/completions")
def tool_named(door: str) -> None:
    named = {"type": "function", "function": {"name": "say"}}
    answer = client(door).chat.completions.create(model=MODEL, messages=ASK, tools=[SAY], tool_choice=named)
    assert answer.choices[0].message.tool_calls[0].function.name == "say"


@CALLS.add("chat.completions.create() with a tool's result", "/v1/chat/completions")
def tool_result(door: str) -> None:
    called = client(door).chat.completions.create(model=MODEL, messages=ASK, tools=[SAY], tool_choice="required")
    message = called.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "said"}
    answer = client(door).chat.completions.create(
        model=MODEL, messages=[*ASK, message, result], tools=[SAY], max_tokens=8
    )
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > called.usage.prompt_tokens


@CALLS.add("chat.completions.stream(tools=…)", "/v1/chat/completions")
def tool_stream(door: str) -> None:
    with client(door).chat.completions.stream(model=MODEL, messages=ASK, tools=[SAY], tool_choice="required") as events:
        answer = events.get_final_completion()
    assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments)["text"]


@CALLS.add("chat.completions.create(response_format={'type': 'json_object'})", "/v1/chat/completions")
def json_object(door: str) -> None:
    form = {"type": "json_object"}
    answer = client(door).chat.completions.create(model=MODEL, messages=ASK, response_format=form)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@CALLS.add("chat.completions.create(response_format={'type': 'json_schema'})", "/v1/chat/completions")
def json_schema(door: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    answer = client(door).chat.completions.create(model=MODEL, messages=ASK, response_format=form)
    assert json.loads(answer.choices[0].message.content)["sky"] == "clear"


@CALLS.add("chat.completions.parse(response_format=Model)", "/v1/chat/completions")
def parse(door: str) -> None:
    answer = client(door).chat.completions.parse(model=MODEL, messages=ASK, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)


@CALLS.add("chat.completions.stream(response_format=Model)", "/v1/chat/completions")
def parse_stream(door: str) -> None:
    with client(door).chat.completions.stream(model=MODEL, messages=ASK, response_format=Weather) as events:
        answer = events.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, Weather)


@CALLS.add("chat.completions.create(logprobs=True, top_logprobs=2)", "/v1/chat/completions")
def logprobs(door: str) -> None:
    answer = client(door).chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=8, logprobs=True, top_logprobs=2
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 8
    assert all(len(token.top_logprobs) == 2 for token in tokens)


@CALLS.add("chat.completions.create(n=3)", "/v1/chat/completions")
def several(door: str) -> None:
    answer = client(door).chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens == 24


@CALLS.add("chat.completions.create(n=2, stream=True)", "/v1/chat/completions")
def several_streamed(door: str) -> None:
    chunks = client(door).chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, n=2, stream=True)
    assert {chunk.choices[0].index for chunk in chunks} == {0, 1}


@CALLS.add("chat.completions.create(stop=…, temperature=…, top_p=…)", "/v1/chat/completions")
def sampling(door: str) -> None:
    answer = client(door).chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=8, stop=["###"], temperature=0.2, top_p=0.9, frequency_penalty=0.1
    )
    assert answer.choices[0].message.content


@CALLS.add("chat.completions.create(seed=…)", "/v1/chat/completions")
def seed(door: str) -> None:
    def text(number: int) -> str:
        answer = client(door).chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, seed=number)
        return answer.choices[0].message.content

    assert text(7) == text(7) != text(8)


@CALLS.add("chat.completions.create(max_completion_tokens=…)", "/v1/chat/completions")
def completion_tokens(door: str) -> None:
    answer = client(door).chat.completions.create(model=MODEL, messages=ASK, max_completion_tokens=5)
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


@CALLS.add("chat.completions.create() with an image as data URL", "/v1/chat/completions")
def image(door: str) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    answer = client(door).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], max_tokens=8
    )
    assert answer.choices[0].message.content


@CALLS.add("chat.completions.create(model='auto')", "/v1/chat/completions")
def auto(door: str) -> None:
    answer = client(door).chat.completions.with_raw_response.create(model="auto", messages=ASK, max_tokens=8)
    assert answer.headers["x-pointsman-model"] == MODEL
    assert answer.parse().choices[0].message.content


@CALLS.add("chat.completions.create(model=a LoRA adapter)", "/v1/chat/completions")
def lora(door: str) -> None:
    assert client(door).chat.completions.create(model=LORA, messages=ASK, max_tokens=8).model == LORA


@CALLS.add("chat.completions.with_raw_response.create()", "/v1/chat/completions")
def raw(door: str) -> None:
    answer = client(door).chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, max_tokens=8, extra_headers={"x-request-id": "mine"}
    )
    assert answer.headers["x-request-id"] == "mine"
    assert answer.parse().choices[0].message.content


@CALLS.add("completions.create()", "/v1/completions")
def completion(door: str) -> None:
    assert client(door).completions.create(model=MODEL, prompt="SELECT", max_tokens=5).usage.completion_tokens == 5


@CALLS.add("completions.create(stream=True)", "/v1/completions")
def completion_stream(door: str) -> None:
    chunks = client(door).completions.create(model=MODEL, prompt="SELECT", max_tokens=5, stream=True)
    assert len(collected(chunk.choices[0].text for chunk in chunks).split()) == 5


@CALLS.add("completions.create(prompt=[…])", "/v1/completions")
def completion_batch(door: str) -> None:
    answer = client(door).completions.create(model=MODEL, prompt=["SELECT", "INSERT"], max_tokens=5)
    assert len(answer.choices) == 2


@CALLS.add("embeddings.create()", "/v1/embeddings")
def embedding(door: str) -> None:
    """The client asks for base64 by itself, and decodes it."""
    answer = client(door).embeddings.create(model=MODEL, input="some words")
    assert abs(sum(value * value for value in answer.data[0].embedding) - 1) < 1e-3
    assert answer.usage.prompt_tokens > 0


@CALLS.add("embeddings.create(encoding_format='base64')", "/v1/embeddings")
def embedding_base64(door: str) -> None:
    answer = client(door).embeddings.create(model=MODEL, input="some words", encoding_format="base64")
    data = base64.b64decode(answer.data[0].embedding)
    floats = client(door).embeddings.create(model=MODEL, input="some words", encoding_format="float")
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == floats.data[0].embedding


@CALLS.add("embeddings.create(dimensions=…, input=[…])", "/v1/embeddings")
def embedding_dimensions(door: str) -> None:
    answer = client(door).embeddings.create(model=MODEL, input=["some words", "others"], dimensions=32)
    assert [len(each.embedding) for each in answer.data] == [32, 32]


@CALLS.add("models.list()", "/v1/models")
def models(door: str) -> None:
    assert {model.id for model in client(door).models.list()} >= {MODEL, LORA}


@CALLS.add("models.retrieve()", "/v1/models/{name}")
def model(door: str) -> None:
    assert client(door).models.retrieve(LORA).id == LORA
    refusal(openai.NotFoundError, lambda: client(door).models.retrieve("gpt-9"), MODEL)


@CALLS.add("responses.create()", "/v1/responses")
def response(door: str) -> None:
    answer = client(door).responses.create(model=MODEL, input=HELLO, instructions="Be brief.", max_output_tokens=8)
    assert answer.output_text.strip()
    assert answer.usage.output_tokens == 8
    assert answer.status == "incomplete"


@CALLS.add("responses.create(stream=True)", "/v1/responses")
def response_stream(door: str) -> None:
    events = list(client(door).responses.create(model=MODEL, input=HELLO, max_output_tokens=8, stream=True))
    assert len(collected(event.delta for event in events if event.type == "response.output_text.delta").split()) == 8
    assert events[-1].type == "response.completed"


@CALLS.add("responses.create(tools=…)", "/v1/responses")
def response_tools(door: str) -> None:
    say = {"type": "function", "name": "say", "parameters": PARAMETERS, "strict": False}
    answer = client(door).responses.create(model=MODEL, input=HELLO, tools=[say], tool_choice="required")
    [call] = answer.output
    assert json.loads(call.arguments)["text"]


@CALLS.add("responses.parse(text_format=Model)", "/v1/responses")
def response_parse(door: str) -> None:
    answer = client(door).responses.parse(model=MODEL, input=HELLO, text_format=Weather)
    assert isinstance(answer.output_parsed, Weather)


@CALLS.add("responses.retrieve()", "/v1/responses/{id}", served=False)
def response_retrieve(door: str) -> None:
    made = client(door).responses.create(model=MODEL, input=HELLO, max_output_tokens=8)
    refusal(openai.NotFoundError, lambda: client(door).responses.retrieve(made.id), "/v1/responses/{id}", MODEL)


@CALLS.add("responses.input_items.list()", "/v1/responses/{id}/input_items", served=False)
def response_items(door: str) -> None:
    made = client(door).responses.create(model=MODEL, input=HELLO, max_output_tokens=8)
    refusal(openai.NotFoundError, lambda: client(door).responses.input_items.list(made.id), "/input_items", MODEL)


@CALLS.add("responses.delete()", "/v1/responses/{id}", served=False)
def response_delete(door: str) -> None:
    made = client(door).responses.create(model=MODEL, input=HELLO, max_output_tokens=8)
    refusal(openai.NotFoundError, lambda: client(door).responses.delete(made.id), "/v1/responses/{id}", MODEL)


@CALLS.add("moderations.create()", "/v1/moderations", served=False)
def moderation(door: str) -> None:
    refusal(
        openai.NotFoundError,
        lambda: client(door).moderations.create(model=MODEL, input=HELLO),
        "/v1/moderations",
        MODEL,
    )


@CALLS.add("audio.transcriptions.create()", "/v1/audio/transcriptions", served=False)
def transcription(door: str) -> None:
    file = ("a.wav", BytesIO(b"RIFF"))
    refusal(
        openai.NotFoundError,
        lambda: client(door).audio.transcriptions.create(model=MODEL, file=file),
        "/v1/audio/transcriptions", MODEL,
    )  # fmt: skip


@CALLS.add("audio.speech.create()", "/v1/audio/speech", served=False)
def speech(door: str) -> None:
    refusal(
        openai.NotFoundError,
        lambda: client(door).audio.speech.create(model=MODEL, voice="alloy", input=HELLO),
        "/v1/audio/speech", MODEL,
    )  # fmt: skip


@CALLS.add("images.generate()", "/v1/images/generations", served=False)
def picture(door: str) -> None:
    refusal(
        openai.NotFoundError,
        lambda: client(door).images.generate(model=MODEL, prompt="a train"),
        "/v1/images/generations", MODEL,
    )  # fmt: skip


def lines(count: int) -> bytes:
    body = {"model": MODEL, "max_tokens": 4, "messages": ASK}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    return "\n".join(json.dumps({"custom_id": str(number), **line}) for number in range(count)).encode()


def new_file(door: str, count: int = 1) -> openai.types.FileObject:
    return client(door).files.create(file=("a.jsonl", BytesIO(lines(count))), purpose="batch")


def new_batch(door: str, count: int = 1) -> openai.types.Batch:
    return client(door).batches.create(
        input_file_id=new_file(door, count).id, endpoint="/v1/chat/completions", completion_window="24h"
    )


@CALLS.add("files.create()", "/v1/files")
def file(door: str) -> None:
    made = new_file(door)
    assert (made.bytes, made.purpose, made.filename) == (len(lines(1)), "batch", "a.jsonl")


@CALLS.add("files.content()", "/v1/files/{id}/content")
def content(door: str) -> None:
    assert client(door).files.content(new_file(door).id).read() == lines(1)


@CALLS.add("batches.create()", "/v1/batches")
def batch(door: str) -> None:
    made = new_batch(door)
    for _ in range(600):
        made = client(door).batches.retrieve(made.id)
        if made.status == "completed":
            break
        time.sleep(0.1)
    assert (made.status, made.request_counts.completed) == ("completed", 1)
    [answer] = client(door).files.content(made.output_file_id).text.splitlines()
    assert json.loads(answer)["response"]["body"]["choices"][0]["message"]["content"].strip()


@CALLS.add("files.content(batch.error_file_id)", "/v1/files/{id}/content")
def errors(door: str) -> None:
    unanswerable = lines(1).replace(MODEL.encode(), b"gpt-9")
    file = client(door).files.create(file=("a.jsonl", BytesIO(unanswerable)), purpose="batch")
    made = client(door).batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    for _ in range(600):
        made = client(door).batches.retrieve(made.id)
        if made.status == "completed":
            break
        time.sleep(0.1)
    assert (made.status, made.request_counts.failed, made.output_file_id) == ("completed", 1, None)
    [answer] = client(door).files.content(made.error_file_id).text.splitlines()
    assert json.loads(answer)["response"]["status_code"] == 404


@CALLS.add("batches.list()", "/v1/batches")
def batches(door: str) -> None:
    made = new_batch(door)
    assert made.id in [each.id for each in client(door).batches.list(limit=100)]


@CALLS.add("batches.cancel()", "/v1/batches/{id}/cancel")
def cancelled(door: str) -> None:
    made = new_batch(door, count=5_000)
    assert client(door).batches.cancel(made.id).status in ("cancelling", "cancelled")


@CALLS.add("fine_tuning.jobs.create()", "/v1/fine_tuning/jobs", served=False)
def fine_tuning(door: str) -> None:
    refusal(
        openai.NotFoundError,
        lambda: client(door).fine_tuning.jobs.create(model=MODEL, training_file="file-1"),
        "doesn't serve /v1/fine_tuning",
    )


@CALLS.add("post('/rerank')", "/v1/rerank", served=False)
def rerank(door: str) -> None:
    body = {"model": MODEL, "query": "a", "documents": ["b", "c"]}
    refusal(openai.NotFoundError, lambda: client(door).post("/rerank", cast_to=object, body=body), "/v1/rerank", MODEL)


@CALLS.add("an unknown model", "/v1/chat/completions", served=False)
def unknown(door: str) -> None:
    refusal(
        openai.NotFoundError,
        lambda: client(door).chat.completions.create(model="llama-3.1-8", messages=ASK),
        "llama-3.1-8b",
    )
