"""Which API a path means."""

import pytest

from pointsman_apis import APIS, READ
from pointsman_apis.api import Api
from pointsman_apis.models import MODELS
from pointsman_apis.paths import WrongMethod, check_method, route_of, unknown_path


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_api_is_found_by_each_of_its_paths_and_with_a_slash_at_the_end(api: Api) -> None:
    for path in (api.path, *api.also):
        sent = path.replace("{id}", "resp_1-a").replace("{model}", "m").replace("{version}", "1")
        route, slashed = route_of(sent), route_of(f"{sent}/")
        assert route is not None
        assert slashed is not None
        assert (route.api, route.path, route.pool) == (api, sent, None)
        assert (slashed.api, slashed.path) == (api, sent)
        assert route.response == ("resp_1-a" if "{id}" in path else None)


@pytest.mark.parametrize(
    "path", ["", "/", "/v1", "/v1/chat", "/v2/chat/completions", "/v1/responses/a/b", "/v1/responses/%0a", "/pools",
             "/pools/", "/pools/p", "/pools/p/", "/pools//generate", "/pools/p/v1/chat/completions",
             "/pools/p/pools/q/generate", "//v1/rerank", "/v1/rerank//", "/V1/rerank", "/v1/responses/" + "x" * 600],
)  # fmt: skip
def test_other_paths_mean_nothing(path: str) -> None:
    assert route_of(path) is None


def test_a_pool_may_stand_before_what_passes() -> None:
    route = route_of("/pools/llama/generate")
    assert route is not None
    assert (route.api.name, route.path, route.pool) == ("generate", "/generate", "llama")


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completion", "Did you mean /v1/chat/completions"),
        ("/v1/embedding", "Did you mean /v1/embeddings"),
        ("/v1/audio/transcription", "Did you mean /v1/audio/transcriptions"),
        ("/x", "Unknown path. Known paths"),
        (
            "/v1/files",
            "This gateway doesn't serve /v1/files: its service `batch` is off (docs/batches.md). Known paths",
        ),
        (
            "/v1/batches/b-1",
            "This gateway doesn't serve /v1/batches: its service `batch` is off (docs/batches.md). Known paths",
        ),
        ("/v1/uploads", "This gateway doesn't serve /v1/uploads. Known paths"),
        ("/v1/fine_tuning/jobs", "This gateway doesn't serve /v1/fine_tuning. Known paths"),
    ],
)
def test_the_error_for_an_unknown_path_names_the_near_ones_and_all_others(path: str, near: str) -> None:
    refusal = unknown_path(path)
    assert (refusal.status, refusal.code) == (404, "unknown_path")
    assert near in refusal.message
    assert all(known in refusal.message for known in (*(api.path for api in READ), MODELS))


def test_the_error_for_a_wrong_method_names_the_right_ones() -> None:
    retrieve, chat = route_of("/v1/responses/r"), route_of("/v1/chat/completions")
    assert retrieve is not None
    assert chat is not None
    check_method("DELETE", retrieve)
    with pytest.raises(WrongMethod) as wrong:
        check_method("POST", retrieve)
    assert wrong.value.allowed == "GET, DELETE"
    with pytest.raises(WrongMethod):
        check_method("GET", chat)
