"""Calls of the `litellm` package."""

import asyncio
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import fetches a table of prices

import litellm

from libraries.calls import HELLO, MODEL, PARAMETERS, WEATHER, Calls, collected, refusal

litellm.suppress_debug_info = True
litellm.telemetry = False
CALLS = Calls()
ASK = [{"role": "user", "content": HELLO}]
SAY = {"type": "function", "function": {"name": "say", "description": "Says it.", "parameters": PARAMETERS}}


def here(door: str, provider: str = "openai") -> dict[str, object]:
    base = door if provider == "anthropic" else f"{door}/v1"
    return {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "unused", "num_retries": 5}


@CALLS.add("completion('openai/…')", "/v1/chat/completions")
def completion(door: str) -> None:
    answer = litellm.completion(**here(door), messages=ASK, max_tokens=8)
    assert len(answer.choices[0].message.content.split()) == 8
    assert answer.usage.completion_tokens == 8


@CALLS.add("completion('hosted_vllm/…')", "/v1/chat/completions")
def completion_vllm(door: str) -> None:
    answer = litellm.completion(**here(door, "hosted_vllm"), messages=ASK, max_tokens=8)
    assert len(answer.choices[0].message.content.split()) == 8


@CALLS.add("completion(stream=True)", "/v1/chat/completions")
def stream(door: str) -> None:
    chunks = litellm.completion(**here(door), messages=ASK, max_tokens=8, stream=True)
    assert len(collected(chunk.choices[0].delta.content for chunk in chunks).split()) == 8


@CALLS.add("acompletion()", "/v1/chat/completions")
def async_completion(door: str) -> None:
    answer = asyncio.run(litellm.acompletion(**here(door), messages=ASK, max_tokens=8))
    assert answer.choices[0].message.content.strip()


@CALLS.add("completion(tools=…)", "/v1/chat/completions")
def tools(door: str) -> None:
    answer = litellm.completion(**here(door), messages=ASK, tools=[SAY], tool_choice="required")
    [call] = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["text"]


@CALLS.add("completion(response_format=…)", "/v1/chat/completions")
def structured(door: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    answer = litellm.completion(**here(door), messages=ASK, response_format=form)
    assert json.loads(answer.choices[0].message.content)["sky"] == "clear"


@CALLS.add("text_completion()", "/v1/completions")
def text(door: str) -> None:
    base = here(door) | {"model": f"text-completion-openai/{MODEL}"}
    assert litellm.text_completion(**base, prompt="SELECT", max_tokens=8).usage.completion_tokens == 8


@CALLS.add("embedding()", "/v1/embeddings")
def embedding(door: str) -> None:
    answer = litellm.embedding(**here(door), input=["some words", "others"])
    assert len(answer.data) == 2
    assert len(answer.data[0]["embedding"]) > 1


@CALLS.add("responses()", "/v1/responses")
def responses(door: str) -> None:
    answer = litellm.responses(**here(door), input=HELLO, max_output_tokens=20)
    assert len(answer.output[0].content[0].text.split()) == answer.usage.output_tokens == 20


@CALLS.add("completion('anthropic/…')", "/v1/messages")
def anthropic(door: str) -> None:
    answer = litellm.completion(**here(door, "anthropic"), messages=ASK, max_tokens=8)
    assert len(answer.choices[0].message.content.split()) == 8


@CALLS.add("completion('anthropic/…', stream=True)", "/v1/messages")
def anthropic_stream(door: str) -> None:
    chunks = litellm.completion(**here(door, "anthropic"), messages=ASK, max_tokens=8, stream=True)
    assert len(collected(chunk.choices[0].delta.content for chunk in chunks).split()) == 8


@CALLS.add("anthropic.messages.acreate()", "/v1/messages")
def anthropic_messages(door: str) -> None:
    options = {name: value for name, value in here(door, "anthropic").items() if name != "num_retries"}
    answer = asyncio.run(litellm.anthropic.messages.acreate(**options, messages=ASK, max_tokens=8))
    assert answer["content"][0]["text"].strip()


@CALLS.add("Router.completion()", "/v1/chat/completions")
def router(door: str) -> None:
    models = [{"model_name": "chat", "litellm_params": here(door)}]
    answer = litellm.Router(model_list=models).completion(model="chat", messages=ASK, max_tokens=8)
    assert answer.choices[0].message.content.strip()


@CALLS.add("rerank()", "/v1/rerank", served=False)
def rerank(door: str) -> None:
    options = here(door, "hosted_vllm") | {"num_retries": 0}
    refusal(
        Exception,
        lambda: litellm.rerank(**options, query="a", documents=["b", "c"]),
        "/v1/rerank", MODEL,
    )  # fmt: skip


@CALLS.add("an unknown model", "/v1/chat/completions", served=False)
def unknown(door: str) -> None:
    options = here(door) | {"model": "openai/gpt-9", "num_retries": 0}
    refusal(litellm.NotFoundError, lambda: litellm.completion(**options, messages=ASK), MODEL)
