"""Calls of the `instructor` package."""

import asyncio

import anthropic
import instructor
import openai
from pydantic import BaseModel, Field

from libraries.calls import HELLO, MODEL, Calls

CALLS = Calls()
ASK = [{"role": "user", "content": HELLO}]


class Weather(BaseModel):
    """The weather."""

    city: str
    sky: str = Field(pattern="^(clear|cloudy)?$")


def client(door: str, mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(
        openai.OpenAI(base_url=f"{door}/v1", api_key="unused", max_retries=5), mode=mode, model=MODEL
    )


@CALLS.add("create(), mode TOOLS", "/v1/chat/completions")
def tools(door: str) -> None:
    made = client(door, instructor.Mode.TOOLS).create(response_model=Weather, messages=ASK)
    assert isinstance(made, Weather)


@CALLS.add("create(), mode JSON_SCHEMA", "/v1/chat/completions")
def schema(door: str) -> None:
    made = client(door, instructor.Mode.JSON_SCHEMA).create(response_model=Weather, messages=ASK)
    assert isinstance(made, Weather)


@CALLS.add("create_with_completion()", "/v1/chat/completions")
def with_completion(door: str) -> None:
    made, whole = client(door, instructor.Mode.TOOLS).create_with_completion(response_model=Weather, messages=ASK)
    assert isinstance(made, Weather)
    assert whole.usage.prompt_tokens > 0


@CALLS.add("create_partial()", "/v1/chat/completions")
def partial(door: str) -> None:
    states = list(client(door, instructor.Mode.TOOLS).create_partial(response_model=Weather, messages=ASK))
    assert len(states) > 1
    assert states[-1].city is not None
    assert states[-1].sky is not None


@CALLS.add("create_iterable()", "/v1/chat/completions")
def iterable(door: str) -> None:
    made = list(client(door, instructor.Mode.TOOLS).create_iterable(response_model=Weather, messages=ASK))
    assert made
    assert all(isinstance(each, Weather) for each in made)


@CALLS.add("from_openai(AsyncOpenAI).create()", "/v1/chat/completions")
def async_create(door: str) -> None:
    asked = instructor.from_openai(
        openai.AsyncOpenAI(base_url=f"{door}/v1", api_key="unused", max_retries=5), model=MODEL
    )
    assert isinstance(asyncio.run(asked.create(response_model=Weather, messages=ASK)), Weather)


@CALLS.add("from_anthropic(Anthropic).create()", "/v1/messages")
def claude(door: str) -> None:
    asked = instructor.from_anthropic(anthropic.Anthropic(base_url=door, api_key="unused", max_retries=5))
    made = asked.create(response_model=Weather, model=MODEL, max_tokens=400, messages=ASK)
    assert isinstance(made, Weather)
