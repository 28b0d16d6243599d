"""Services that share a process: two bundles on one port, and bundles beside separate services."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import SERVICES, Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(stacks: StackFactory) -> AsyncIterator[Stack]:
    """Two bundles of every service on one port."""
    async with stacks.start(replicas=dict.fromkeys(SERVICES, 2), bundled=True) as stack:
        yield stack


async def ask(http: aiohttp.ClientSession, door: str, model: str = "auto") -> tuple[int, str]:
    """Status and request id."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    async with http.post(f"{door}/v1/chat/completions", json=body) as answer:
        await answer.read()
        return answer.status, answer.headers["x-request-id"]


async def test_a_request_stays_in_the_process_that_took_it_and_every_event_leaves_it_once(pair: Stack) -> None:
    async with observing(pair.nats.url) as seen:
        scheduled, completed = seen.listen(RequestScheduled, ANY), seen.listen(ResponseCompleted, ANY)
        ids: list[str] = []
        for _ in range(20):
            # A connection each: the kernel deals them to both.
            async with aiohttp.ClientSession() as http:
                status, request_id = await ask(http, pair.door)
                assert status == 200
                ids.append(request_id)
        await eventually(lambda: {event.request_id for event in completed} >= set(ids))
    decided = {event.request_id: event for event in scheduled if event.request_id in ids}
    assert len(decided) == len([event for event in scheduled if event.request_id in ids]) == len(ids)
    assert len([event for event in completed if event.request_id in ids]) == len(ids)
    for event in decided.values():
        assert {report.instance for report in event.trail} == {event.edge}


async def test_when_one_of_two_bundles_is_killed_only_what_it_held_fails(pair: Stack) -> None:
    first = pair.services["frontend"][0]
    broken: list[str] = []
    answered = 0
    going = True

    async def keep_asking() -> None:
        nonlocal answered
        while going:
            try:
                # As clients do whose connection broke: a new one.
                async with aiohttp.ClientSession() as http:
                    status, _ = await ask(http, pair.door)
            except aiohttp.ClientError as error:
                broken.append(type(error).__name__)
            else:
                assert status == 200
                answered += 1

    asking = [asyncio.ensure_future(keep_asking()) for _ in range(4)]
    await eventually(lambda: answered > 20)
    first.kill()
    so_far = answered
    await eventually(lambda: answered > so_far + 100)
    going = False
    await asyncio.gather(*asking)
    assert len(broken) <= len(asking), "each client had one request at a time in it"
    bundle = pair.start_bundle(*SERVICES)
    for service in SERVICES:
        pair.services[service][0] = bundle
    await bundle.wait_ready()


async def test_a_bundle_without_a_stage_asks_the_process_that_has_it(stacks: StackFactory) -> None:
    edge = ("frontend", "preprocessor", "metrics-collector")
    async with stacks.start(engines=1) as stack, aiohttp.ClientSession() as http:
        stack.services["frontend"][0].kill()
        bundle = stack.start_bundle(*edge)
        await bundle.wait_ready()
        async with observing(stack.nats.url) as seen:
            scheduled = seen.listen(RequestScheduled, ANY)
            status, request_id = await ask(http, stack.door)
            assert status == 200
            event = await eventually(lambda: next((e for e in scheduled if e.request_id == request_id), None))
        instances = {report.stage: report.instance for report in event.trail}
        assert instances["preprocessor"] == event.edge
        assert instances["profile-picker"] != event.edge
        assert event.source != event.edge


async def test_the_bundle_that_the_documents_start_serves_by_itself(stacks: StackFactory) -> None:
    async with stacks.start(engines=1) as stack, aiohttp.ClientSession() as http:
        for service in SERVICES:
            stack.services[service][0].kill()
        bundle = stack.start_bundle(
            "frontend", "preprocessor", "profile-picker", "model-selector", "scheduler", "metrics-collector", "recorder"
        )  # fmt: skip
        await bundle.wait_ready()

        async def served() -> bool:
            status, _ = await ask(http, stack.door)
            return status == 200

        await eventually(served)


async def test_a_bundles_metrics_are_those_of_all_its_services(pair: Stack) -> None:
    url = pair.services["frontend"][1].http_url
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/metrics") as answer:
            text = await answer.text()
        async with http.get(f"{url}/ready") as answer:
            assert json.loads(await answer.text()) == {"ready": True, "reasons": {}}
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {"pointsman_json_decodes_total", "pointsman_worker_state", "process_resident_memory_bytes"} <= names
    assert len(names) == len([line for line in text.splitlines() if line.startswith("# TYPE")])
