"""`pointsman explain --dry-run` and the console's `/api/dry-run`, through real processes: the decision comes back, and
nothing that counts, publishes or serves requests notices."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from pointsman_contracts.response import RequestAnswered, RequestRejected, ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled, Reservations
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

MODEL: Final = "llama-3.1-8b"
BODY: Final[dict[str, Any]] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
COUNTED: Final = (
    "pointsman_edge_requests", "pointsman_http_requests", "pointsman_json_decodes", "pointsman_preprocess",
    "pointsman_processor", "pointsman_limit", "pointsman_profile", "pointsman_model_select", "pointsman_scheduler_dec",
    "pointsman_scheduler_refus", "pointsman_scheduler_open", "pointsman_scheduler_held", "pointsman_scheduler_drop",
)  # fmt: skip
"""Beginnings of the names of metrics that count requests."""
UNCOUNTED: Final = "pointsman_limit_shards"
"""A keeper adopts its shards while the first requests come: no request changes how many it has."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    key = tmp_path_factory.mktemp("provider") / "key"
    key.write_text("provider-key\n")
    # Nothing listens there.
    far = {"kind": "openai", "base_url": "http://127.0.0.1:1", "credential": f"file:{key}"}
    changes: dict[str, Any] = {
        "providers": {"far": far},
        "models": {
            MODEL: {"pool": "llama-8b", "cost": {"input": 1.0, "output": 2.0}},
            "gpt-far": {"provider": "far", "fallbacks": [MODEL]},
        },
        "preprocessing": [
            "identity-headers",
            {"use": "request-limit", "per": ["tenant"], "rate": "2/h"},
            {"use": "token-limit", "per": ["tenant"], "amount": "1000/h"},
            {"use": "budget", "amount": "1/d"},
        ],
    }
    trusting = {"POINTSMAN_TRUSTED_PROXIES": '["127.0.0.0/8"]'}
    async with stacks.start(changes=changes, settings=trusting, bundled=True, replicas={"recorder": 1}) as started:
        yield started


async def dry_run(stack: Stack, folder: Path, body: object = BODY, *, tenant: str) -> tuple[int, dict[str, Any]]:
    """Exit code and event. A busy machine may keep who counts for so long that it answers 503: then once more."""
    file = folder / "request.json"
    file.write_text(json.dumps(body))
    told: list[tuple[int, dict[str, Any]]] = []

    async def decided() -> bool:
        tenancy = f"x-pointsman-tenant: {tenant}"
        code, text = await stack.command("explain", "--dry-run", str(file), "--header", tenancy, "--json")
        lines = [line for line in text.splitlines() if line.startswith("{")]
        told.extend((code, json.loads(line)) for line in lines)
        return bool(lines) and told[-1][1].get("status") != 503

    await eventually(decided, timeout=90)
    return told[-1]


async def ask(stack: Stack, tenant: str) -> int:
    """The status, where it isn't 503 as above."""
    url, headers = f"{stack.door}/v1/chat/completions", {"x-pointsman-tenant": tenant}

    async def once() -> tuple[int]:
        async with aiohttp.ClientSession() as http, http.post(url, json=BODY, headers=headers) as answer:
            await answer.read()
            return (answer.status,)

    return (await answered(once))[0]


async def counted(stack: Stack) -> dict[str, float]:
    """Every sample of the metrics that count requests."""
    found: dict[str, float] = {}
    async with aiohttp.ClientSession() as http:
        for service in {each.http_url: each for own in stack.services.values() for each in own}:
            async with http.get(f"{service}/metrics") as answer:
                for family in text_string_to_metric_families(await answer.text()):
                    if family.name.startswith(COUNTED) and family.name != UNCOUNTED:
                        found.update({f"{each.name}{each.labels}": each.value for each in family.samples})
    return found


async def test_a_dry_run_names_engine_price_and_stages_and_leaves_no_trace(stack: Stack, tmp_path: Path) -> None:
    async with observing(stack.nats.url) as observer:
        scheduled, rejected = observer.listen(RequestScheduled, ANY), observer.listen(RequestRejected, ANY)
        answered, completed = observer.listen(RequestAnswered, ANY), observer.listen(ResponseCompleted, ANY)
        reserved = observer.listen(Reservations, ANY)
        before, served = await counted(stack), [await engine.state() for engine in stack.engines]
        for _ in range(3):
            code, event = await dry_run(stack, tmp_path, tenant="quiet")
            assert code == 0
            assert event["type"] == "request.scheduled.v1"
            assert set(event["endpoints"]) == {"engine-1", "engine-2"}
            assert event["dry_run"]["queue_ms"] == 0.0
            assert event["dry_run"]["answer_nanos"] == 2_000_000
            stages = [report["stage"] for report in event["trail"]]
            assert stages[-1] == "scheduler"
            assert "preprocessor/request-limit" in stages
        after = await counted(stack)
        assert {name: (before.get(name), value) for name, value in after.items() if before.get(name) != value} == {}
        assert [await engine.state() for engine in stack.engines] == served
        # The two requests that the limit admits are still admitted, and the event of one comes through.
        assert [await ask(stack, "quiet") for _ in range(3)] == [200, 200, 429]
        await eventually(lambda: len(completed) >= 3)
    changes = [change for message in reserved for change in message.changes]
    seen = [each.request_id for each in (*scheduled, *rejected, *answered, *completed, *changes)]
    assert not [request_id for request_id in seen if request_id.startswith("dry-run")]


async def test_a_providers_model_is_named_and_the_provider_is_not_asked(stack: Stack, tmp_path: Path) -> None:
    code, event = await dry_run(stack, tmp_path, {**BODY, "model": "gpt-far"}, tenant="far")
    assert (code, event["endpoints"], event["target"]["provider"]) == (0, ["far"], "far")
    assert event["dry_run"]["fallbacks"] == [MODEL]
    assert event["dry_run"].get("answer_nanos") is None


async def test_a_dry_run_that_would_be_refused_says_by_whom_and_why(stack: Stack, tmp_path: Path) -> None:
    assert [await ask(stack, "busy") for _ in range(2)] == [200, 200]
    code, event = await dry_run(stack, tmp_path, tenant="busy")
    assert (code, event["type"], event["status"], event["stage"]) == (1, "request.rejected.v1", 429, "preprocessor")
    code, event = await dry_run(stack, tmp_path, {**BODY, "model": "no-such-model"}, tenant="other")
    assert (code, event["status"], event["code"]) == (1, 404, "model_not_found")
    code, event = await dry_run(stack, tmp_path, {"path": "/v1/embeddings", "body": {"model": MODEL}}, tenant="other")
    assert (code, event["status"]) == (1, 400)


async def test_only_an_operators_key_gets_a_dry_run_over_http(stack: Stack) -> None:
    created = [
        await stack.command("keys", "create", "--tenant", "ops", *scope) for scope in ((), ("--scope", "console"))
    ]
    (client, operator) = [next(word for word in text.split() if word.startswith("pm-")) for _, text in created]
    console = stack.start("console")
    await console.wait_ready()
    [serving] = [line for line in console.log_lines() if line.get("event") == "serving"]
    tried = {"headers": {"x-pointsman-tenant": "http"}, "body": BODY}
    async with aiohttp.ClientSession(str(serving["url"])) as http:

        async def told(key: str | None) -> tuple[int, dict[str, Any]]:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            async with http.post("/api/dry-run", json=tried, headers=headers) as answer:
                document = await answer.json()
                # The event of a 503 comes with a 200.
                return document.get("status", answer.status), document

        for key, status in ((None, 401), (client, 401), (operator, 200)):
            found, document = await answered(lambda key=key: told(key))
            assert found == status, document
    assert document["type"] == "request.scheduled.v1"
    assert set(document["endpoints"]) == {"engine-1", "engine-2"}
