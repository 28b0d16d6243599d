"""Reads a request's body once, within bounds of size and time."""

import asyncio

from pointsman_core.refusal import Refusal
from pointsman_edge.taking_in.body_size import check_length, check_not_empty
from pointsman_runtime.service.http_server import Receive


class ClientGone(Exception):
    """The client hung up before its request was complete."""


async def read_body(receive: Receive, limit: int, within_s: float) -> bytes:
    """The whole body. Raises Refusal 413 over `limit` bytes, 408 after `within_s` seconds, and ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if message.get("more_body", False):
        body = await _read_rest(receive, body, limit, within_s)
    check_length(len(body), limit)
    check_not_empty(body)
    return body


async def _read_rest(receive: Receive, first: bytes, limit: int, within_s: float) -> bytes:
    pieces = [first]
    size = len(first)
    more = True
    try:
        async with asyncio.timeout(within_s):
            # Where a chunked body would end isn't known; over the limit, what has come is too much already.
            while more and size <= limit:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece: bytes = message.get("body", b"")
                pieces.append(piece)
                size += len(piece)
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refusal(
            408, f"The body was not complete within {within_s:g} s; {size} bytes had come.", code="request_timeout"
        ) from None
    return b"".join(pieces)
