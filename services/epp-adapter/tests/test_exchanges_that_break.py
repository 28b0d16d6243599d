"""Aborted, reset, truncated and out-of-order exchanges, and the end of the process."""

import asyncio
import json
from collections import Counter

import grpc
import pytest

from pointsman_contracts.presence import OpenRequestsQuery
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_testing import eventually
from pointsman_testing.ext_proc import BUFFERED, FULL_DUPLEX, NONE, Exchange
from pointsman_testing.picker import PickerUnderTest, StartPicker

BODY = b'{"model":"llama-8b","messages":[]}'
PHASES = ("headers", "half a body", "deciding", "sent on", "answering")


async def up_to(phase: str, picker: PickerUnderTest, number: int = 1) -> Exchange:
    """An exchange that has come so far."""
    exchange = picker.client.open()
    await exchange.request(headers={"x-request-id": f"request-{number}"})
    if phase == "headers":
        return exchange
    await exchange.body(BODY, end=phase != "half a body")
    if phase == "deciding":
        await eventually(lambda: any(each.request_id == f"request-{number}" for each, _, _ in picker.stages.asked))
    elif phase in ("sent on", "answering"):
        await exchange.replies(2)
    if phase == "answering":
        await exchange.response(headers={"content-type": "text/event-stream"})
        await exchange.body(b"data: 1\n\n", end=False, of="response")
        await exchange.replies(2)
    return exchange


@pytest.mark.parametrize("how", ["reset", "closed"])
@pytest.mark.parametrize("phase", PHASES)
async def test_an_exchange_that_breaks_off_is_completed_once(phase: str, how: str, start_picker: StartPicker) -> None:
    picker = await start_picker()
    if phase == "deciding":
        picker.stages.let_go.clear()
    exchange = await up_to(phase, picker)
    await eventually(lambda: picker.ask_open(OpenRequestsQuery(request_ids=("request-1",))).request_ids)
    if how == "reset":
        exchange.reset()
    else:
        await exchange.done()
    (done,) = await picker.completed()
    assert (done.request_id, done.outcome) == ("request-1", "client_gone")
    assert done.status == (200 if phase == "answering" else 499)
    assert picker.stages.abandoned == (phase == "deciding")
    assert not picker.ask_open(OpenRequestsQuery(request_ids=("request-1",))).request_ids


async def test_the_passed_part_of_a_stream_that_broke_off_is_charged_and_marked_as_estimated(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker(stream_usage=True)
    picker.stages.changes = {"prompt_tokens": 90}
    exchange = await up_to("sent on", picker)
    await exchange.response(headers={"content-type": "text/event-stream"})
    for _ in range(3):
        await exchange.body(b'data: {"choices":[{"index":0,"delta":{"content":" a"}}]}\n\n', end=False, of="response")
    await exchange.replies(4)
    exchange.reset()
    (done,) = await picker.completed()
    assert (done.outcome, done.usage) == (
        "client_gone",
        Usage(prompt_tokens=90, completion_tokens=3, estimated=True, cached_unknown=True),
    )


OUT_OF_ORDER = ("a body first", "a second head", "pieces while deciding")


@pytest.mark.parametrize("name", OUT_OF_ORDER)
async def test_messages_out_of_order_end_the_stream_in_words(name: str, start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = picker.client.open()
    picker.stages.let_go.clear()
    if name == "a body first":
        await exchange.body(BODY)
    elif name == "a second head":
        await exchange.request()
        await exchange.request()
    else:
        await exchange.request()
        await exchange.body(BODY)
        for _ in range(3):
            await exchange.body(BODY)
    assert await exchange.ended() is grpc.StatusCode.INVALID_ARGUMENT
    begun = name in OUT_OF_ORDER[1:]
    assert [each.outcome for each in await picker.completed(begun)] == ["rejected"] * begun


ENDED_BY_ENVOY = {413: (413, "body_too_large"), 408: (408, "refused_by_proxy"), 500: (502, "ended_by_proxy")}
"""Envoy's status → the client's, and its code."""


@pytest.mark.parametrize("modes", [(FULL_DUPLEX, FULL_DUPLEX), (BUFFERED, NONE)], ids=["duplex", "buffered"])
@pytest.mark.parametrize("phase", ["half a body", "deciding"])
@pytest.mark.parametrize("status", ENDED_BY_ENVOY)
async def test_a_request_that_envoy_ends_itself_is_refused_in_the_words_of_its_api(
    status: int, phase: str, modes: tuple[int, int], start_picker: StartPicker
) -> None:
    picker = await start_picker()
    picker.stages.let_go.clear()
    exchange = picker.client.open()
    await exchange.request(path="/v1/messages", modes=modes)
    if modes[0] == BUFFERED:
        await exchange.reply()
    if phase == "deciding":
        await exchange.body(BODY)
        await eventually(lambda: picker.stages.asked)
    elif modes[0] == FULL_DUPLEX:
        await exchange.body(BODY, end=False)
    await exchange.response(status, headers={"content-type": "text/plain"}, details="request_payload_too_large")
    refused = await exchange.reply()
    assert refused.kind == "immediate_response"
    error = json.loads(refused.body or b"")["error"]
    assert (refused.status, error["details"]["error_code"]) == ENDED_BY_ENVOY[status]
    assert await exchange.ended() is grpc.StatusCode.OK, "it is no violation of the protocol"
    (done,) = await picker.completed()
    assert (done.outcome, done.status) == ("rejected", refused.status)
    assert "request_payload_too_large" in done.reason
    assert picker.stages.abandoned == (phase == "deciding")


async def test_ten_thousand_exchanges_aborted_in_every_phase_leave_nothing(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.let_go.clear()
    room = asyncio.Semaphore(50)

    async def abort(number: int) -> None:
        phase = PHASES[number % 3]
        async with room:
            exchange = await up_to("half a body" if phase == "deciding" else phase, picker, number)
            if phase == "deciding":
                await exchange.body(b" ")
            exchange.reset()

    await asyncio.gather(*(abort(number) for number in range(10_000)))
    ids = tuple(f"request-{number}" for number in range(10_000))
    await eventually(lambda: not picker.ask_open(OpenRequestsQuery(request_ids=ids)).request_ids)
    counts = Counter(each.request_id for each in picker.events.of(ResponseCompleted))
    # A reset may overtake the headers, so that the picker never hears of the request.
    assert set(counts.values()) <= {1}


async def test_a_stop_lets_what_is_open_end_and_takes_nothing_new(start_picker: StartPicker) -> None:
    picker = await start_picker(drain_timeout_s=20)
    exchange = await up_to("sent on", picker)
    stopping = asyncio.ensure_future(picker.stop())
    # A stream that is opened before the client hears of the end is taken: it has until the end of the grace.
    await eventually(lambda: picker.client.channel.get_state() is not grpc.ChannelConnectivity.READY)
    late = picker.client.open()
    assert await late.ended() is grpc.StatusCode.UNAVAILABLE
    assert not stopping.done()
    await exchange.response()
    await exchange.body(b'{"choices":[]}', of="response")
    await exchange.reply()
    assert (await exchange.reply()).end
    await stopping
    assert [each.outcome for each in await picker.completed()] == ["ok"]


async def test_requests_that_dont_end_in_time_are_completed_as_shut_down(start_picker: StartPicker) -> None:
    picker = await start_picker(drain_timeout_s=0.2)
    await up_to("sent on", picker)
    await picker.stop()
    assert [each.outcome for each in await picker.completed()] == ["shutdown"]


async def test_an_error_of_our_own_is_500_with_the_requests_id(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.failure = RuntimeError("a bug")
    exchange = picker.client.open()
    await exchange.request(modes=(BUFFERED, NONE), headers={"x-request-id": "mine"})
    await exchange.reply()
    await exchange.body(BODY)
    refused = await exchange.reply()
    assert (refused.status, b"mine" in (refused.body or b"")) == (500, True)
