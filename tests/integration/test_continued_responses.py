"""A chain of responses is predicted with the size of its whole prompt, of which the gateway has the last turn alone."""

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Final

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.responses import Response

from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import POOL, Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

BLOCK: Final = 64
TURNS: Final = 5
MODEL: Final = "llama-3.1-8b"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
    async with stacks.start(
        changes={"pools": {POOL: {"models": [MODEL], "block_tokens": BLOCK}}}, bundled=True
    ) as stack:
        yield stack


async def respond(client: AsyncOpenAI, text: str, previous: str | None, *, stream: bool) -> tuple[str, Response]:
    """The request's id, and the response."""
    create = client.responses.with_raw_response.create
    if not stream:
        raw = await create(model=MODEL, input=text, max_output_tokens=200, previous_response_id=previous)
        return raw.headers["x-request-id"], raw.parse()
    events = await create(model=MODEL, input=text, max_output_tokens=200, previous_response_id=previous, stream=True)
    [ended] = [event.response async for event in events.parse() if event.type == "response.completed"]
    return events.headers["x-request-id"], ended


async def find_decision(decisions: list[RequestScheduled], request_id: str) -> RequestScheduled:
    found = await eventually(lambda: next((each for each in decisions if each.request_id == request_id), None))
    assert found is not None
    return found


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_each_turn_of_a_chain_is_predicted_with_its_size_and_what_its_engine_has_cached(
    stack: Stack, stream: bool
) -> None:
    seen: list[RequestScheduled] = []
    async with (
        observing(stack.nats.url) as observer,
        AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="-", max_retries=5) as client,
    ):
        decisions = observer.listen(RequestScheduled, POOL)
        previous: str | None = None
        for turn in range(TURNS):
            text = f"Turn {turn}, streamed {stream}: " + "Which track does the next train take? " * 30
            request_id, response = await respond(client, text, previous, stream=stream)
            previous, usage = response.id, response.usage
            decision = await find_decision(decisions, request_id)
            assert usage is not None
            assert abs(decision.prompt_tokens - usage.input_tokens) <= BLOCK
            assert abs(decision.cached_tokens - usage.input_tokens_details.cached_tokens) <= BLOCK
            seen.append(decision)
    # Each turn adds its input and an answer.
    assert all(later.prompt_tokens > earlier.prompt_tokens + BLOCK for earlier, later in pairwise(seen))
    assert all(each.cached_tokens > BLOCK for each in seen[1:])
