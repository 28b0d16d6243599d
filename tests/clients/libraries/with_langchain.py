"""Calls of LangChain: `langchain-openai` and `langchain-anthropic`."""

import asyncio

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from libraries.calls import HELLO, MODEL, PIXEL, Calls, collected

CALLS = Calls()


class Weather(BaseModel):
    """The weather."""

    city: str
    sky: str


@tool
def say(text: str) -> str:
    """Says it."""
    return text


def chat(door: str, **options: object) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{door}/v1", api_key="unused", model=MODEL, max_retries=5, **options)


def claude(door: str, **options: object) -> ChatAnthropic:
    return ChatAnthropic(base_url=door, api_key="unused", model=MODEL, max_retries=5, **options)


@CALLS.add("ChatOpenAI.invoke()", "/v1/chat/completions")
def invoke(door: str) -> None:
    answer = chat(door, max_tokens=8).invoke([SystemMessage("Be brief."), HumanMessage(HELLO)])
    assert answer.content.strip()
    assert answer.usage_metadata["output_tokens"] == 8


@CALLS.add("ChatOpenAI.stream()", "/v1/chat/completions")
def stream(door: str) -> None:
    chunks = list(chat(door, max_tokens=8, stream_usage=True).stream(HELLO))
    assert len(collected(chunk.content for chunk in chunks).split()) == 8
    assert any(chunk.usage_metadata for chunk in chunks)


@CALLS.add("ChatOpenAI.batch()", "/v1/chat/completions")
def batch(door: str) -> None:
    assert len({answer.content for answer in chat(door, max_tokens=8).batch([HELLO, "And more."])}) == 2


@CALLS.add("ChatOpenAI.ainvoke(), abatch()", "/v1/chat/completions")
def async_calls(door: str) -> None:
    async def both() -> int:
        model = chat(door, max_tokens=8)
        answers = [await model.ainvoke(HELLO), *(await model.abatch([HELLO, "And more."]))]
        return len([answer for answer in answers if answer.content.strip()])

    assert asyncio.run(both()) == 3


@CALLS.add("ChatOpenAI.astream()", "/v1/chat/completions")
def async_stream(door: str) -> None:
    async def pieces() -> list[str]:
        return [chunk.content async for chunk in chat(door, max_tokens=8).astream(HELLO)]

    assert len(collected(asyncio.run(pieces())).split()) == 8


@CALLS.add("ChatOpenAI.bind_tools()", "/v1/chat/completions")
def tools(door: str) -> None:
    model = chat(door).bind_tools([say], tool_choice="any")
    called = model.invoke(HELLO)
    [call] = called.tool_calls
    assert (call["name"], bool(call["args"]["text"])) == ("say", True)
    result = ToolMessage(say.invoke(call["args"]), tool_call_id=call["id"])
    answer = chat(door, max_tokens=8).bind_tools([say]).invoke([HumanMessage(HELLO), called, result])
    assert answer.content.strip()


@CALLS.add("ChatOpenAI.with_structured_output()", "/v1/chat/completions")
def structured(door: str) -> None:
    assert isinstance(chat(door).with_structured_output(Weather).invoke(HELLO), Weather)


@CALLS.add("ChatOpenAI.with_structured_output(method='function_calling')", "/v1/chat/completions")
def structured_tool(door: str) -> None:
    assert isinstance(chat(door).with_structured_output(Weather, method="function_calling").invoke(HELLO), Weather)


@CALLS.add("prompt | ChatOpenAI | parser", "/v1/chat/completions")
def chain(door: str) -> None:
    steps = ChatPromptTemplate.from_messages([("human", "{what}")]) | chat(door, max_tokens=8) | StrOutputParser()
    assert len(steps.invoke({"what": HELLO}).split()) == 8


@CALLS.add("ChatOpenAI.invoke() with an image", "/v1/chat/completions")
def image(door: str) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    assert chat(door, max_tokens=8).invoke([HumanMessage(parts)]).content.strip()


@CALLS.add("ChatOpenAI(use_responses_api=True).invoke()", "/v1/responses")
def responses(door: str) -> None:
    answer = chat(door, max_tokens=8, use_responses_api=True).invoke(HELLO)
    assert answer.text.strip()
    assert answer.usage_metadata["output_tokens"] == 8


@CALLS.add("ChatOpenAI(use_responses_api=True).stream()", "/v1/responses")
def responses_stream(door: str) -> None:
    chunks = chat(door, max_tokens=8, use_responses_api=True).stream(HELLO)
    assert len(collected(chunk.text for chunk in chunks).split()) == 8


@CALLS.add("OpenAI.invoke()", "/v1/completions")
def completion(door: str) -> None:
    model = OpenAI(base_url=f"{door}/v1", api_key="unused", model=MODEL, max_tokens=8, max_retries=5)
    assert len(model.invoke("SELECT").split()) == 8


@CALLS.add("OpenAIEmbeddings.embed_documents(), embed_query()", "/v1/embeddings")
def embeddings(door: str) -> None:
    model = OpenAIEmbeddings(
        base_url=f"{door}/v1", api_key="unused", model=MODEL, check_embedding_ctx_length=False, max_retries=5
    )
    documents = model.embed_documents(["some words", "others"])
    assert len(documents) == 2
    assert all(abs(a - b) < 1e-6 for a, b in zip(model.embed_query("some words"), documents[0], strict=True))


@CALLS.add("ChatAnthropic.invoke()", "/v1/messages")
def claude_invoke(door: str) -> None:
    answer = claude(door, max_tokens=8).invoke([SystemMessage("Be brief."), HumanMessage(HELLO)])
    assert answer.content.strip()
    assert answer.usage_metadata["output_tokens"] == 8


@CALLS.add("ChatAnthropic.stream()", "/v1/messages")
def claude_stream(door: str) -> None:
    assert len(collected(chunk.text for chunk in claude(door, max_tokens=8).stream(HELLO)).split()) == 8


@CALLS.add("ChatAnthropic.bind_tools()", "/v1/messages")
def claude_tools(door: str) -> None:
    [call] = claude(door, max_tokens=400).bind_tools([say], tool_choice="any").invoke(HELLO).tool_calls
    assert call["args"]["text"]


@CALLS.add("ChatAnthropic.with_structured_output()", "/v1/messages")
def claude_structured(door: str) -> None:
    assert isinstance(claude(door, max_tokens=400).with_structured_output(Weather).invoke(HELLO), Weather)
