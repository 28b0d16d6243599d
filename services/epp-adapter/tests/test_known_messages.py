"""Messages that are written once for many requests have each request's own id."""

import pytest

from pointsman_testing.ext_proc import BUFFERED, CHAT
from pointsman_testing.picker import StartPicker


@pytest.mark.parametrize("extra", [{}, {"x-routing": "1", "cookie": "a=b"}])
async def test_requests_that_differ_in_their_ids_get_the_same_message(
    start_picker: StartPicker, extra: dict[str, str]
) -> None:
    picker = await start_picker()
    told: list[list[object]] = []
    # A short id's message is written for itself, those of longer ones but once.
    for request_id in ("short", "a-request-of-its-own", "b-request-of-its-own", "c-request-of-another-length"):
        exchange = picker.client.open()
        await exchange.request(modes=(BUFFERED, BUFFERED), headers={"x-request-id": request_id, **extra})
        await exchange.reply()
        await exchange.body(CHAT)
        way_in = await exchange.reply()
        await exchange.response(upstream="10.0.0.1:8000", headers={"content-length": "2", "x-gateway-own": "1"})
        way_back = await exchange.reply()
        await exchange.body(b"{}", of="response")
        await exchange.reply()
        await exchange.done()
        assert (way_in.set.pop("x-request-id"), way_back.set.pop("x-request-id")) == (request_id, request_id)
        assert way_in.metadata["pointsman"].pop("request_id") == request_id
        told.append([vars(way_in), vars(way_back)])
    assert told[0] == told[1] == told[2] == told[3]
