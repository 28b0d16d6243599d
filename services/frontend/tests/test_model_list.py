"""`/v1/models` lists the models that the client may use."""

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from pointsman_contracts.journey import HeaderEdit, PreprocessRequest
from pointsman_contracts.reply import Answer, Rejection
from pointsman_edge.deciding.decider import StagesMissing
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge

CONFIG: dict[str, object] = {
    "preprocessing": ["api-key-auth"],
    "pools": {"p": {"models": ["small", "large"]}},
    "models": {"small": {"pool": "p", "groups": ["own"]}},
    "rewrites": [{"match": "gpt-small", "to": "small"}, {"match": "gpt-large", "to": "large"}],
    "providers": {},
}


async def listed(edge: EdgeUnderTest, name: str = "") -> tuple[int, dict[str, str], Any]:
    headers = {"authorization": "Bearer k"}
    async with aiohttp.ClientSession() as http, http.get(f"{edge.url}/v1/models{name}", headers=headers) as answer:
        document = await answer.json()
        names = [model["id"] for model in document["data"]] if "data" in document else document
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, names


def allowing(models: bytes) -> Callable[[PreprocessRequest], Answer]:
    def say(request: PreprocessRequest) -> Answer:
        assert (request.method, request.path) == ("GET", "/v1/models")
        assert request.headers["authorization"] == "Bearer k"
        return Answer(request_id=request.request_id, stage="preprocessor", body=b'{"models": ' + models + b"}")

    return say


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (b"null", ["small", "large", "gpt-small", "gpt-large"]),
        (b'["small"]', ["small", "gpt-small"]),
        (b'["group:own"]', ["small", "gpt-small"]),
        (b'["l*"]', ["large", "gpt-large"]),
        (b'["alias:gpt-l*"]', ["gpt-large"]),
        (b'["alias:small"]', []),
        (b"[]", []),
    ],
)
async def test_a_client_sees_the_models_and_aliases_that_it_may_use(
    models: bytes, names: list[str], start_edge: StartEdge
) -> None:
    edge = await start_edge(config=CONFIG)
    edge.stages.reply = allowing(models)
    status, _, found = await listed(edge)
    assert (status, found) == (200, names)
    assert (await listed(edge, "/small"))[0] == (200 if "small" in names else 404)


async def test_a_client_that_is_not_let_in_sees_no_model(start_edge: StartEdge) -> None:
    edge = await start_edge(config=CONFIG)
    edge.stages.reply = lambda request: Rejection(
        request_id=request.request_id,
        stage="preprocessor",
        status=401,
        type="invalid_request_error",
        code="invalid_api_key",
        message="No.",
        answer_headers=(HeaderEdit(name="www-authenticate", value="Bearer"),),
    )
    status, headers, document = await listed(edge)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert document["error"]["code"] == "invalid_api_key"


async def test_while_the_client_can_not_be_identified_nothing_is_listed(start_edge: StartEdge) -> None:
    edge = await start_edge(config=CONFIG)
    edge.stages.failure = StagesMissing("the bus is gone")
    assert (await listed(edge))[0] == 503


async def test_without_authentication_everything_is_listed_without_the_stages(start_edge: StartEdge) -> None:
    edge = await start_edge(
        config=CONFIG | {"preprocessing": [{"use": "api-key-auth", "mode": "shadow"}, "stream-usage"]}
    )
    edge.stages.failure = StagesMissing("the bus is gone")
    status, _, names = await listed(edge)
    assert (status, names) == (200, ["small", "large", "gpt-small", "gpt-large"])


SELECTING = CONFIG | {
    "profiles": {"auto": {"request": ["model-selector/s", "scheduler"]}},
    "selectors": {"s": {"models": ["small"]}},
}


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (b"null", ["small", "large", "gpt-small", "gpt-large", "auto"]),
        (b'["sm*"]', ["small", "gpt-small", "auto"]),
        (b'["large"]', ["large", "gpt-large"]),
    ],
)
async def test_auto_is_listed_where_a_model_may_be_chosen_that_the_client_may_use(
    models: bytes, names: list[str], start_edge: StartEdge
) -> None:
    edge = await start_edge(config=SELECTING)
    edge.stages.reply = allowing(models)
    assert (await listed(edge))[2] == names
    assert (await listed(edge, "/auto"))[0] == (200 if "auto" in names else 404)
