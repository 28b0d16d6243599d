"""examples/policy.yaml as it is, on real processes: its order, its models, its clients, and its events."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
import nats
import pytest
import pytest_asyncio
import yaml
from nats.aio.msg import Msg

from pointsman_cli.keys import api_keys, stored_keys
from pointsman_contracts.api_key import ApiKey
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.stack import ServedPool, Stack, StackFactory

EXAMPLE: Final = Path(__file__).resolve().parents[2] / "examples" / "policy.yaml"
OWNER: Final = "pm-example-acme"
GUEST: Final = "pm-example-guest"
STORED: Final = {"use": "api-key-auth", "name": "stored-keys", "stored": True}

SERVED: Final = ServedPool("llama", ("llama-8b", "llama-70b"), ())

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["separate", "bundled"])
async def policed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """The example, with one engine for its pool; once with a process for each service, once with one for all."""
    stacks = StackFactory(tmp_path_factory.mktemp("stacks"), EXAMPLE)
    async with stacks.start(
        replicas={"guard": 1, "semantic-cache": 1},
        engines=1,
        static=None,
        stored=True,
        served=SERVED,
        bundled=request.param == "bundled",
    ) as started:

        async def serves() -> bool:
            status, _, _ = await ask(started, OWNER, text="Is anybody there?")
            return status == 200

        await eventually(lambda: asyncio.ensure_future(serves()))
        yield started


class Wire:
    """Everything on the bus that is about requests, in the order in which it was published."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []

    async def keep(self, message: Msg) -> None:
        self.messages.append((message.subject, message.data))

    def of(self, subject: str, headers: Mapping[str, str]) -> list[dict[str, Any]]:
        """Those on such a subject that are about the request with this answer; events of the request before may
        still come."""
        found = [json.loads(data.partition(b"\n")[0]) for name, data in self.messages if name.startswith(subject)]
        return [document for document in found if document["request_id"] == headers["x-request-id"]]


@pytest_asyncio.fixture(loop_scope="module")
async def wire(policed: Stack) -> AsyncIterator[Wire]:
    kept = Wire()
    client = await nats.connect(policed.nats.url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    await client.subscribe("pm.>", cb=kept.keep)  # pyright: ignore[reportUnknownMemberType] - as above
    await client.flush()
    yield kept
    await client.close()


async def ask(
    stack: Stack, key: str | None, model: str = "auto", text: str = "Hello", **fields: int
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4} | fields

    async def once() -> tuple[int, dict[str, Any], Mapping[str, str]]:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{stack.door}/v1/chat/completions", json=body, headers=headers) as answer,
        ):
            return answer.status, cast("dict[str, Any]", await answer.json()), answer.headers

    return await answered(once)


async def apply(stack: Stack, file: Path) -> None:
    code, output = await stack.command("config", "apply", "--wait", "60", str(file))
    assert code == 0, output


@pytest.mark.requirement("S3-1", "S3-11", "S3-21", "S3-25")
async def test_a_request_passes_every_stage_in_the_order_of_the_policy_and_leaves_a_trace_at_each(
    policed: Stack, wire: Wire
) -> None:
    status, document, headers = await ask(policed, OWNER)
    assert status == 200, document
    [scheduled] = await eventually(lambda: wire.of("pm.evt.request.scheduled", headers))
    assert [report["stage"].removeprefix("preprocessor/") for report in scheduled["trail"]] == [
        "infra-request-limit", "infra-token-limit", "api-key-auth", "authorization", "request-limit", "token-limit",
        "preprocessor", "profile-picker", "model-selector", "guard", "semantic-cache", "scheduler",
    ]  # fmt: skip
    assert all(report["outcome"] == "passed" for report in scheduled["trail"])
    [completed] = await eventually(lambda: wire.of("pm.evt.response.completed", headers))
    assert [report["stage"] for report in completed["stages"]] == ["guard"]
    assert completed["usage"]["completion_tokens"] > 0
    assert headers["x-pointsman-level"] == scheduled["level"] == completed["level"]
    [reviewed] = await eventually(lambda: wire.of("pm.evt.response.reviewed", headers))
    [report] = reviewed["stages"]
    assert (report["stage"], report["outcome"], report["note"]) == ("semantic-cache", "passed", "ended by length")
    assert report["took_ms"] > 0
    reviewed_by = [review["stage"] for review in wire.of("pm.rpc.response.review", headers)]
    assert reviewed_by == ([] if policed.bundled else ["guard", "semantic-cache"]), "a hop inside a process is a call"


async def test_the_end_of_a_request_says_how_many_answers_it_had(policed: Stack, wire: Wire) -> None:
    status, document, headers = await ask(policed, OWNER, text="Name one", n=3)
    assert (status, len(document["choices"])) == (200, 3)
    [completed] = await eventually(lambda: wire.of("pm.evt.response.completed", headers))
    assert completed["answers"] == 3
    assert completed["usage"]["completion_tokens"] <= 3 * 4


@pytest.mark.requirement("S3-8", "S3-24")
async def test_an_unknown_client_gets_401_and_no_later_stage_runs(policed: Stack, wire: Wire) -> None:
    for key, code in ((None, "missing_api_key"), ("pm-canary-77d1", "invalid_api_key")):
        status, document, headers = await ask(policed, key)
        assert (status, document["error"]["code"], document["error"]["type"]) == (401, code, "invalid_request_error")
        assert headers["WWW-Authenticate"].startswith('Bearer realm="pointsman"')
        [rejected] = await eventually(lambda headers=headers: wire.of("pm.evt.request.rejected", headers))
        assert rejected["trail"][-2]["stage"] == "preprocessor/authentication"
        await eventually(lambda headers=headers: wire.of("pm.evt.response.completed", headers))
        for later in ("pm.rpc.request.pick-profile", "pm.rpc.request.schedule"):
            assert wire.of(later, headers) == []
        told = [name for name, data in wire.messages if b"canary-77d1" in data]
        assert all(name.startswith("pm.rpc.request.preprocess") for name in told)


@pytest.mark.requirement("S3-8")
async def test_a_model_that_is_not_allowed_is_served_by_no_way(policed: Stack, wire: Wire) -> None:
    status, document, _ = await ask(policed, GUEST, "llama-70b")
    assert (status, document["error"]["code"]) == (403, "model_not_allowed")
    status, document, headers = await ask(policed, GUEST, "auto")
    assert (status, document["model"]) == (200, "auto")
    [scheduled] = await eventually(lambda: wire.of("pm.evt.request.scheduled", headers))
    assert scheduled["target"]["model"] == "llama-8b"
    status, document, _ = await ask(policed, GUEST, "no-such-model")
    assert status == 404
    assert "llama-70b" not in document["error"]["message"]


async def test_every_model_of_the_example_is_served_and_the_guest_has_the_small_one(policed: Stack) -> None:
    for key, model in ((OWNER, "llama-8b"), (OWNER, "llama-70b"), (GUEST, "llama-8b")):
        status, document, _ = await ask(policed, key, model)
        assert (status, document["model"]) == (200, model), document


async def test_models_are_listed_for_clients_that_may_use_them(policed: Stack) -> None:
    async def listed(key: str) -> tuple[int, list[str]]:
        headers = {"x-api-key": key}
        async with aiohttp.ClientSession() as http, http.get(f"{policed.door}/v1/models", headers=headers) as answer:
            document = await answer.json()
            return answer.status, [model["id"] for model in document.get("data", [])]

    assert await answered(lambda: listed(OWNER)) == (200, ["llama-70b", "llama-8b", "auto"])
    assert await answered(lambda: listed(GUEST)) == (200, ["llama-8b", "auto"])
    assert await answered(lambda: listed("pm-unknown")) == (401, [])


async def test_a_stored_key_counts_from_when_it_is_made_until_it_is_taken_back(policed: Stack, tmp_path: Path) -> None:
    changed = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    uses = [use if isinstance(use, str) else use["use"] for use in changed["preprocessing"]]
    changed["preprocessing"].insert(uses.index("api-key-auth") + 1, STORED)
    with_stored = tmp_path / "stored.yaml"
    with_stored.write_text(yaml.safe_dump(changed), encoding="utf-8")
    await apply(policed, with_stored)
    record = ApiKey(tenant="acme", id="robot", scopes=("inference",))
    key, digest, _ = api_keys.made(record)
    async with stored_keys.opened(policed.nats.url) as keys:
        await keys.store_key(digest, record)

    async def answered(wanted: int) -> bool:
        status, _, _ = await ask(policed, key)
        return status == wanted

    await eventually(lambda: asyncio.ensure_future(answered(200)))
    async with stored_keys.opened(policed.nats.url) as keys:
        assert await keys.revoke_keys("robot") == 1
    await eventually(lambda: asyncio.ensure_future(answered(401)))
    await apply(policed, EXAMPLE)


async def test_a_key_for_an_alias_is_served_the_model_behind_it_and_refused_the_model(
    policed: Stack, tmp_path: Path
) -> None:
    changed = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    uses = [use if isinstance(use, str) else use["use"] for use in changed["preprocessing"]]
    changed["preprocessing"].insert(uses.index("api-key-auth") + 1, STORED)
    changed["rewrites"] = [{"match": "prod", "to": "llama-70b"}]
    with_alias = tmp_path / "alias.yaml"
    with_alias.write_text(yaml.safe_dump(changed), encoding="utf-8")
    await apply(policed, with_alias)
    record = ApiKey(tenant="acme", id="for-prod", scopes=("inference",), models=("alias:prod",))
    key, digest, _ = api_keys.made(record)
    async with stored_keys.opened(policed.nats.url) as keys:
        await keys.store_key(digest, record)

    async def served() -> bool:
        status, document, _ = await ask(policed, key, "prod")
        return (status, document.get("model")) == (200, "prod")

    await eventually(lambda: asyncio.ensure_future(served()))
    for model in ("llama-70b", "llama-8b"):
        status, document, _ = await ask(policed, key, model)
        assert (status, document["error"]["code"]) == (403, "model_not_allowed")
    listing = {"x-api-key": key}
    async with aiohttp.ClientSession() as http, http.get(f"{policed.door}/v1/models", headers=listing) as answer:
        assert [model["id"] for model in (await answer.json())["data"]] == ["prod"]
    async with stored_keys.opened(policed.nats.url) as keys:
        assert await keys.revoke_keys("for-prod") == 1
    await apply(policed, EXAMPLE)


@pytest.mark.requirement("PRIVACY-1")
async def test_a_valid_key_is_found_in_no_message_but_the_first_and_in_no_log_or_metric(
    policed: Stack, wire: Wire
) -> None:
    status, _, headers = await ask(policed, OWNER)
    assert status == 200
    await eventually(lambda: wire.of("pm.evt.response.completed", headers))
    told = [name for name, data in wire.messages if OWNER.encode() in data]
    assert all(name.startswith("pm.rpc.request.preprocess") for name in told)
    async with aiohttp.ClientSession() as http:
        for service in policed.all_services():
            async with http.get(f"{service.http_url}/metrics") as answer:
                assert OWNER not in await answer.text()
            assert OWNER not in service.log_text()
    for engine in policed.engines:
        assert OWNER not in engine.process.log_text()
