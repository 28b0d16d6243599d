"""Prompt text and credentials appear in no event, signal, log, metric or error."""

import aiohttp
import nats
import pytest
from nats.aio.msg import Msg

from pointsman_testing import eventually
from pointsman_testing.stack import Stack

pytestmark = [
    pytest.mark.requirement("PRIVACY-1"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]

CANARY = "canary-7f3a9c"
SECRET = "sk-canary-51b2"  # noqa: S105 -- it is what must not leak


async def test_a_canary_in_prompts_and_keys_is_found_nowhere(stack: Stack) -> None:
    seen: list[bytes] = []

    async def keep(message: Msg) -> None:
        seen.append(message.subject.encode() + b" " + message.data)

    client = await nats.connect(stack.nats.url)  # pyright: ignore[reportUnknownMemberType] # untyped in nats-py
    try:
        # The request's content goes to the preprocessor alone; everything else that travels is looked at.
        for kind in (
            "evt",
            "sig",
            "ctl",
            "rpc.request.pick-profile",
            "rpc.request.select-model",
            "rpc.request.schedule",
        ):
            await client.subscribe(f"pm.{kind}.>", cb=keep)  # pyright: ignore[reportUnknownMemberType] # untyped in nats-py
        await client.subscribe("_INBOX.frontend.>", cb=keep)  # pyright: ignore[reportUnknownMemberType] # untyped in nats-py
        await client.flush()
        texts = await _talk(stack)
        await eventually(lambda: sum(b"pm.evt.response.completed" in message for message in seen) >= 5)
    finally:
        await client.close()
    async with aiohttp.ClientSession() as http:
        for service in stack.all_services():
            async with http.get(f"{service.http_url}/metrics") as answer:
                texts.append(await answer.text())
            texts.append(service.log_text())
    everything = [*seen, *(text.encode() for text in texts)]
    assert len(everything) > 30
    for word in (CANARY, SECRET):
        assert [text[:200] for text in everything if word.encode() in text] == []


async def _talk(stack: Stack) -> list[str]:
    """Send the canary through good and bad requests; what errors said."""
    errors: list[str] = []
    headers = {"authorization": f"Bearer {SECRET}", "cookie": f"session={SECRET}"}
    message = {"role": "user", "content": f"Remember {CANARY}."}
    bodies: list[dict[str, object]] = [
        {"model": "llama-3.1-8b", "messages": [message], "max_tokens": 3},
        {"model": "auto", "messages": [message], "max_tokens": 3, "stream": True},
        {"model": "sql-lora", "prompt": [CANARY, 7], "max_tokens": 3},
        {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": {"text": CANARY}}]},
        {"model": "llama-3.1-8b", "messages": [message], "temperature": CANARY},
        {"model": "no-such-model", "messages": [message]},
    ]
    async with aiohttp.ClientSession(headers=headers) as http:
        for body in bodies:
            path = "completions" if "prompt" in body else "chat/completions"
            async with http.post(f"{stack.door}/v1/{path}", json=body) as answer:
                text = await answer.text()
                if answer.status != 200:
                    errors.append(text)
        async with http.post(
            f"{stack.door}/v1/chat/completions",
            data=f'{{"model": "llama-3.1-8b", "messages": "{CANARY}',
            headers={"content-type": "application/json"},
        ) as answer:
            errors.append(await answer.text())
    assert len(errors) >= 4
    return errors
