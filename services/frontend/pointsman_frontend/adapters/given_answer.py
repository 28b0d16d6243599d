"""Passes on an answer that a stage gave, as if an engine had."""

import time
from typing import Final

from pointsman_contracts.reply import Answer
from pointsman_edge.sending.given_answer import answer_body, answer_headers
from pointsman_edge.telling.exchange import Exchange
from pointsman_frontend.adapters.client import Client

_FAILED: Final = 500


async def pass_on(answer: Answer, client: Client, exchange: Exchange) -> None:
    """Send it, a stream as a stream. Raises Withheld."""
    headers, body = answer_headers(answer), answer_body(answer)
    exchange.first_byte_at = time.monotonic()
    if answer.stream:
        await client.start(answer.status, [*headers, (b"x-accel-buffering", b"no")])
        await client.end(body)
    else:
        await client.answer(answer.status, headers, body)
    exchange.end("ok" if answer.status < _FAILED else "rejected", answer.status)
