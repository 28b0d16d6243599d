"""A cache gets one fingerprint of everything that decides a request's answer, as the engine gets it."""

import orjson
import pytest
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_core.config import load
from pointsman_core.fingerprint import deciding, fingerprint
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_testing import builders

PATH = "/v1/completions"
CACHED = {"pools": {"p": {"models": ["m"]}}, "profiles": {"s": {"request": ["semantic-cache", "scheduler"]}}}


def incoming(**body: JsonValue) -> Incoming:
    raw = orjson.dumps({"model": "m", "prompt": "hi", **body})
    return Incoming(builders.preprocess_request(path=PATH), parse(PATH, raw), read_headers({}))


def said_of(request: Incoming) -> bytes:
    return compile_pipeline(load(CACHED)).build_facts(request).fingerprint


def test_it_is_that_of_the_body_with_what_processors_changed_for_the_client() -> None:
    assert said_of(incoming()) == fingerprint("completions", deciding({"prompt": "hi"}))
    changed = incoming(seed=7)
    changed.set_field("max_tokens", 8)
    changed.set_field("stream_options", {"include_usage": True}, unasked=True)
    changed.remove_field("seed")
    assert said_of(changed) == said_of(incoming(max_tokens=8))


@pytest.mark.parametrize("request_stages", [["scheduler"], [{"stage": "semantic-cache", "mode": "off"}, "scheduler"]])
def test_where_no_cache_is_in_force_nothing_is_computed(request_stages: list[object]) -> None:
    config = load(CACHED | {"profiles": {"s": {"request": request_stages}}})
    assert compile_pipeline(config).build_facts(incoming()).fingerprint == b""
