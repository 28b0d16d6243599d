"""The request to an engine names another one that has the prompt's KV cache, through every service of a gateway."""

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_testing import eventually
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.scripted_engine import Received
from pointsman_testing.stack import ServedPool, StackFactory

pytestmark = [pytest.mark.timeout(240)]

POOL, MODEL = "pulling", "m"
CHAT = "/v1/chat/completions"
SOURCE = "x-kv-cache-source-host-port"


@pytest.mark.requirement("TIERS-3")
async def test_the_engine_that_has_the_prompt_is_named_to_the_one_that_computes_it(stacks: StackFactory) -> None:
    async with FakeEngine() as one, FakeEngine() as other:
        engines = {each.url.partition("//")[2]: each for each in (one, other)}
        urls: list[JsonValue] = [each.url for each in engines.values()]
        # Either engine gets a prompt, whatever it has.
        policy: JsonValue = {"filters": ["healthy"], "picker": "random", "pre-request": ["cache-source-header"]}
        changes: dict[str, JsonValue] = {
            "pools": {POOL: {"models": [MODEL], "discovery": "static", "engines": urls, "scheduling": "pulls"}},
            "models": {MODEL: {"pool": POOL}},
            "scheduling": {"pulls": policy},
            "selectors": {},
            "profiles": {"standard": {"request": ["scheduler"]}},
            "profile-picker": {"use": "single", "profile": "standard"},
        }
        served = ServedPool(POOL, (MODEL,), ())
        async with (
            stacks.start(engines=0, changes=changes, served=served, bundled=True, static=None) as stack,
            aiohttp.ClientSession() as http,
        ):

            async def ask(number: int) -> tuple[str, Received]:
                """The address of the engine that answers, and what it gets."""
                before = {address: len(each.received) for address, each in engines.items()}
                words = " ".join(f"{number}-{place}" for place in range(600))
                body = {"model": MODEL, "messages": [{"role": "user", "content": words}]}
                async with http.post(stack.door + CHAT, json=body) as answer:
                    assert answer.status == 200, await answer.text()
                [found] = [
                    (address, request)
                    for address, each in engines.items()
                    for request in each.received[before[address] :]
                    if request.path == CHAT
                ]
                return found

            sources: list[tuple[str, str]] = []
            """The engine that a prompt was sent to before, and the one that is named."""
            numbers = iter(range(1000))

            async def named() -> bool:
                number = next(numbers)
                (first, new), (second, known) = await ask(number), await ask(number)
                assert new.header(SOURCE) is None
                if (source := known.header(SOURCE)) is not None:
                    assert second != first
                    sources.append((first, source))
                return {first for first, _ in sources} == set(engines)

            await eventually(named, timeout=60)
            assert all(first == source for first, source in sources)
