"""Calls of LlamaIndex: `llama-index-llms-openai-like` and `llama-index-embeddings-openai-like`."""

import asyncio

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from libraries.calls import HELLO, MODEL, Calls, collected

CALLS = Calls()
ASK = [ChatMessage(role="user", content=HELLO)]


class Weather(BaseModel):
    """The weather."""

    city: str
    sky: str


def say(text: str) -> str:
    """Says it."""
    return text


def llm(door: str, *, chats: bool = True) -> OpenAILike:
    return OpenAILike(
        api_base=f"{door}/v1", api_key="unused", model=MODEL, max_tokens=8, max_retries=5, context_window=8192,
        is_chat_model=chats, is_function_calling_model=True,
    )  # fmt: skip


def embedding(door: str) -> OpenAILikeEmbedding:
    return OpenAILikeEmbedding(api_base=f"{door}/v1", api_key="unused", model_name=MODEL, max_retries=5)


@CALLS.add("OpenAILike.chat()", "/v1/chat/completions")
def chat(door: str) -> None:
    assert len(llm(door).chat(ASK).message.content.split()) == 8


@CALLS.add("OpenAILike.stream_chat()", "/v1/chat/completions")
def stream_chat(door: str) -> None:
    assert len(collected(piece.delta for piece in llm(door).stream_chat(ASK)).split()) == 8


@CALLS.add("OpenAILike.achat()", "/v1/chat/completions")
def async_chat(door: str) -> None:
    assert len(asyncio.run(llm(door).achat(ASK)).message.content.split()) == 8


@CALLS.add("OpenAILike.complete()", "/v1/completions")
def complete(door: str) -> None:
    assert len(llm(door, chats=False).complete("SELECT").text.split()) == 8


@CALLS.add("OpenAILike.stream_complete()", "/v1/completions")
def stream_complete(door: str) -> None:
    pieces = llm(door, chats=False).stream_complete("SELECT")
    assert len(collected(piece.delta for piece in pieces).split()) == 8


@CALLS.add("OpenAILike.chat_with_tools()", "/v1/chat/completions")
def tools(door: str) -> None:
    model = llm(door)
    model.max_tokens = 400
    answer = model.chat_with_tools([FunctionTool.from_defaults(say)], user_msg=HELLO, tool_required=True)
    [call] = model.get_tool_calls_from_response(answer)
    assert (call.tool_name, bool(call.tool_kwargs["text"])) == ("say", True)


@CALLS.add("OpenAILike.as_structured_llm()", "/v1/chat/completions")
def structured(door: str) -> None:
    model = llm(door)
    model.max_tokens = 400
    assert isinstance(model.as_structured_llm(Weather).chat(ASK).raw, Weather)


@CALLS.add("OpenAILikeEmbedding.get_text_embedding()", "/v1/embeddings")
def embed(door: str) -> None:
    vector = embedding(door).get_text_embedding("some words")
    assert abs(sum(value * value for value in vector) - 1) < 1e-3


@CALLS.add("OpenAILikeEmbedding.get_text_embedding_batch()", "/v1/embeddings")
def embed_batch(door: str) -> None:
    assert len(embedding(door).get_text_embedding_batch(["some words", "others"])) == 2


@CALLS.add("OpenAILikeEmbedding.aget_query_embedding()", "/v1/embeddings")
def embed_async(door: str) -> None:
    assert len(asyncio.run(embedding(door).aget_query_embedding("some words"))) > 1
