"""Streams that are silent for a while: the adapter sends comments where Envoy takes bytes of its own, and in no other
mode."""

import asyncio
import json

import pytest

from pointsman_contracts.journey import AnswerUse, Stage
from pointsman_testing.ext_proc import BUFFERED, FULL_DUPLEX, NONE, STREAMED, Exchange, Reply
from pointsman_testing.picker import PickerUnderTest, StartPicker

CHAT = b'{"model":"llama-8b","stream":true,"messages":[]}'
STREAM = {"content-type": "text/event-stream"}
COMMENT = b": keep-alive\n\n"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
ERROR = b'data: {"error":{"message":"x","code":503}}\n\n'
SOON = {"edge": {"keep_alive": "300ms"}}


async def answered(picker: PickerUnderTest, modes: tuple[int, int], path: str = "/v1/chat/completions") -> Exchange:
    """An exchange whose engine has begun to answer with a stream."""
    exchange = picker.client.open()
    await exchange.request(modes=modes, path=path)
    if modes[0] == BUFFERED:
        await exchange.reply()
    await exchange.body(CHAT)
    await exchange.replies(1 if modes[0] == BUFFERED else 2)
    await exchange.response(headers=STREAM)
    return exchange


@pytest.mark.parametrize("reviewed", [False, True])
async def test_a_silent_stream_gets_comments_before_its_first_word_and_behind_it(
    reviewed: bool, start_picker: StartPicker
) -> None:
    picker = await start_picker(config=SOON)
    if reviewed:
        picker.stages.changes["response"] = (Stage(service="guard", answer=AnswerUse(mode="window", content="text")),)
    exchange = await answered(picker, (FULL_DUPLEX, FULL_DUPLEX))
    head, comment, again = await exchange.replies(3)
    assert (head.kind, comment.body, again.body) == ("response_headers", COMMENT, COMMENT)
    await exchange.body(ROLE + WORD + END, of="response")
    told = b""
    while True:
        reply = await exchange.reply()
        told += reply.body or b""
        if reply.end:
            break
    assert told.replace(COMMENT, b"") == ROLE + WORD + END
    (done,) = await picker.completed()
    assert done.outcome == "ok"


async def test_no_comment_comes_within_an_event(start_picker: StartPicker) -> None:
    picker = await start_picker(config=SOON)
    exchange = await answered(picker, (FULL_DUPLEX, FULL_DUPLEX))
    await exchange.body(WORD + WORD[:20], of="response", end=False)
    told = b"".join([reply.body or b"" for reply in await exchange.replies(3)])
    await exchange.body(WORD[20:] + END, of="response")
    while not (reply := await exchange.reply()).end:
        told += reply.body or b""
    assert (told + (reply.body or b"")).replace(COMMENT, b"") == WORD + WORD + END


async def test_anthropics_clients_get_pings(start_picker: StartPicker) -> None:
    picker = await start_picker(config=SOON)
    exchange = await answered(picker, (FULL_DUPLEX, FULL_DUPLEX), "/v1/messages")
    _, ping = await exchange.replies(2)
    assert ping.body == b'event: ping\ndata: {"type":"ping"}\n\n'


async def test_behind_a_comment_an_error_is_an_event(start_picker: StartPicker) -> None:
    picker = await start_picker(config=SOON)
    exchange = await answered(picker, (FULL_DUPLEX, FULL_DUPLEX))
    await exchange.replies(2)
    await exchange.body(ERROR, of="response")
    told = b""
    while not (reply := await exchange.reply()).end:
        told += reply.body or b""
    told += reply.body or b""
    assert json.loads(told.replace(COMMENT, b"").removeprefix(b"data: "))["error"]["message"] == "x"
    (done,) = await picker.completed()
    assert done.outcome == "cut_off"


async def test_an_engines_comments_let_its_client_wait_for_comments_too(start_picker: StartPicker) -> None:
    picker = await start_picker(config={"edge": {"keep_alive": "off"}})
    exchange = await answered(picker, (FULL_DUPLEX, FULL_DUPLEX))
    head = asyncio.ensure_future(exchange.reply())
    while not head.done():
        await exchange.body(b": thinking\n\n", of="response", end=False)
        await asyncio.wait([head], timeout=0.05)
    assert (head.result().kind, (await exchange.reply()).body) == ("response_headers", COMMENT)


async def silent(exchange: Exchange) -> "asyncio.Future[Reply]":
    """The next reply, which hasn't come within twice the time after which a comment would."""
    coming = asyncio.ensure_future(exchange.reply())
    came, _ = await asyncio.wait([coming], timeout=0.6)
    assert not came
    return coming


@pytest.mark.parametrize(("mode", "wanted"), [(STREAMED, NONE), (BUFFERED, NONE), (NONE, None)])
async def test_where_envoy_shows_no_stream_it_passes_as_the_engine_sends_it(
    mode: int, wanted: int | None, start_picker: StartPicker
) -> None:
    """The limit of these modes: no comment, no status for an error, no mark that the engine left out."""
    picker = await start_picker(config=SOON)
    exchange = await answered(picker, (BUFFERED, mode))
    assert (await exchange.reply()).mode == wanted
    coming = await silent(exchange)
    await exchange.done()
    with pytest.raises(EOFError):
        await coming


async def test_where_envoy_shows_a_stream_piece_by_piece_only_its_pieces_can_change(start_picker: StartPicker) -> None:
    """The limit of this mode: each piece has one answer, so no comment, and the head has left before an error."""
    picker = await start_picker(config=SOON, stream_usage=True)
    exchange = await answered(picker, (BUFFERED, STREAMED))
    assert (await exchange.reply()).kind == "response_headers"
    coming = await silent(exchange)
    await exchange.body(ERROR, of="response")
    shaped = await coming
    assert shaped.kind == "response_body"
    assert json.loads((shaped.body or ERROR).removeprefix(b"data: "))["error"]["message"] == "x"
    (done,) = await picker.completed()
    assert done.outcome == "cut_off"
