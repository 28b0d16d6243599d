"""APIs that pass as they are: the model, the prompt's size, what guards see, usage."""

from typing import get_args
from urllib.parse import quote

import orjson
import pytest
from pydantic import JsonValue

from pointsman_apis import APIS, named
from pointsman_apis.answers import read
from pointsman_apis.paths import route_of, with_model
from pointsman_apis.prompt_texts import body_members, prompt_texts
from pointsman_apis.requests import StructuredBody, model_of, parse
from pointsman_contracts.response import Usage
from pointsman_core.config import load, served_model
from pointsman_core.refusal import Refusal

FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
    b'--b\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n'
    b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nSpell it Pointsman.\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\0\xff\r\n--b--\r\n'
)
KIND = "multipart/form-data; boundary=b"
ONE = load({"pools": {"p": {"models": ["lora", "m"], "loras": ["lora"]}}})
TWO = load({"pools": {"p": {"models": ["m"]}, "q": {"models": ["n"]}, "none": {}}})


def body(path: str, **fields: JsonValue) -> StructuredBody:
    return parse(path, orjson.dumps(fields))


def test_a_form_names_the_model_and_has_its_text_members_as_document() -> None:
    parsed = parse("/v1/audio/transcriptions", memoryview(FORM), content_type=KIND)
    assert (parsed.api.name, parsed.model) == ("audio.transcriptions", "whisper")
    assert parsed.document == {"model": "whisper", "stream": True, "prompt": "Spell it Pointsman."}
    assert bytes(parsed.raw) == FORM


@pytest.mark.parametrize(
    ("path", "fields", "prompts"),
    [
        ("/v1/rerank", {"model": "m", "query": "a", "documents": ["b", {"text": "c"}]}, ["a", "b", "c"]),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}, ["a", "b"]),
        ("/generate", {"input_ids": [1, 2, 3], "sampling_params": {"top_p": 1}}, [[1, 2, 3]]),
        ("/v1/images/generations", {"prompt": "a", "image": "AAAA"}, ["a"]),
        ("/v1/rerank", {"query": {"content": [{"image_url": {"url": "data:image/png;base64,AA"}}]}}, []),
        ("/tokenize", {"prompt": "no model works for it"}, []),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}, []),
    ],
)
def test_the_prompt_is_every_text_that_a_model_works_for(
    path: str, fields: dict[str, JsonValue], prompts: list[str | list[int]]
) -> None:
    assert body(path, **fields).view.prompts == prompts


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"model": 1}', b'{"model": "a", "model": "b"}', b'{"model": ""}'])
def test_json_that_passes_is_checked_like_any_other(raw: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        parse("/v1/rerank", raw)
    assert refused.value.status == 400


def test_only_what_generates_may_have_output() -> None:
    assert body("/v1/rerank", model="m").max_output_tokens == 0
    assert body("/generate", text="a").max_output_tokens is None


def test_a_request_without_a_model_is_for_the_first_model_of_its_pool() -> None:
    assert model_of(ONE, body("/tokenize", model="x")) == "x"
    assert model_of(ONE, body("/tokenize", prompt="a")) == "m"
    assert model_of(TWO, body("/pools/q/tokenize", prompt="a")) == "n"
    assert model_of(TWO, parse("/pools/q/tokenizer_info", b"")) == "n"


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("/tokenize", {}, 400, "/pools/<pool>/tokenize"),
        ("/pools/x/tokenize", {}, 404, "the path names"),
        ("/pools/none/tokenize", {}, 400, "lists no model"),
        ("/pools/q/tokenize", {"model": "m"}, 400, "isn't in the pool"),
    ],
)
def test_the_error_for_an_unclear_model_says_how_to_name_it(
    path: str, fields: dict[str, JsonValue], status: int, words: str
) -> None:
    with pytest.raises(Refusal) as refused:
        model_of(TWO, body(path, **fields))
    assert refused.value.status == status
    assert words in refused.value.message


def texts(raw: bytes) -> tuple[dict[str, str], list[str]]:
    found = prompt_texts(body_members(raw), everything=True)
    return {slot.part: slot.text for slot in found.slots}, found.unread


def test_guards_see_every_string_and_what_they_cannot_read_counts_as_unread() -> None:
    assert texts(orjson.dumps({"model": "m", "query": "a", "documents": ["b"], "x": {"y": ["c"]}})) == (
        {"documents[0]": "b", "query": "a", "x.y[0]": "c"},
        [],
    )
    assert texts(orjson.dumps({"tokens": [1, 2]})) == ({}, ["tokens"])
    assert texts(orjson.dumps({"input_ids": [[1]], "image_data": "AA"})) == ({}, ["tokens", "media"])
    assert texts(FORM) == ({"prompt": "Spell it Pointsman.", "stream": "true"}, ["media"])
    assert texts(b"") == ({}, [])


def test_guards_see_every_string_of_an_answer() -> None:
    reading = read(named("rerank"), {"id": "1", "results": [{"index": 0, "document": {"text": "a secret"}}]})
    assert [slot.text for slot in reading.slots] == ["a secret"]
    assert reading.whole


def test_usage_of_what_passes_is_what_the_answer_reports() -> None:
    tail = named("rerank").usage()
    tail.follow_bytes(b'{"results": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}}')
    assert tail.read_usage() == Usage(prompt_tokens=7, cached_unknown=True)
    generated = named("generate").usage()
    generated.follow_bytes(b'data: {"text": "a", "meta_info": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n')
    generated.follow_bytes(
        b'data: {"text": "ab", "meta_info": {"prompt_tokens": 3, "completion_tokens": 2}}\n\ndata: [DONE]'
    )
    assert generated.read_usage() == Usage(prompt_tokens=3, completion_tokens=2, cached_unknown=True)
    several = named("generate").usage()
    several.follow_bytes(b'[{"text": "a", "meta_info": {"prompt_tokens": 3, "completion_tokens": 1}}]')
    assert several.read_usage() is None


def test_errors_of_counting_tokens_are_anthropics() -> None:
    error = orjson.loads(named("messages.count_tokens").error(Refusal(404, "no", code="model_not_found")))
    assert (error["type"], error["error"]["type"]) == ("error", "not_found_error")


def test_a_models_section_may_name_every_api_that_takes_a_body() -> None:
    names = [api.name for api in APIS if api.body != "none"]
    assert set(get_args(served_model.Api)) == set(names)


@pytest.mark.requirement("KSERVE-2")
@pytest.mark.parametrize(
    ("path", "api", "model", "at_engine"),
    [
        ("/v2/models/m/infer", "infer", "m", "/v2/models/m/infer"),
        ("/v2/models/m/versions/3/infer", "infer", "m", "/v2/models/m/versions/3/infer"),
        (
            "/v2/models/meta/llama-3.1/generate",
            "infer.generate",
            "meta/llama-3.1",
            "/v2/models/meta%2Fllama-3.1/generate",
        ),
        (
            "/v2/models/meta%2Fm/generate_stream/",
            "infer.generate_stream",
            "meta/m",
            "/v2/models/meta%2Fm/generate_stream",
        ),
        ("/v2/models/m/ready", "infer.ready", "m", "/v2/models/m/ready"),
        ("/v2/models/m", "infer.model", "m", "/v2/models/m"),
    ],
)
def test_a_path_of_the_open_inference_protocol_names_the_model(path: str, api: str, model: str, at_engine: str) -> None:
    route = route_of(path)
    assert route is not None
    assert (route.api.name, route.model, route.path) == (api, model, at_engine)
    begin, name = "/v2/models/", quote(model, safe="")
    assert with_model(route.path, "other/name") == at_engine.replace(f"{begin}{name}", f"{begin}other%2Fname")


def test_texts_of_its_tensors_are_the_prompt_and_numbers_are_not() -> None:
    inputs: list[JsonValue] = [
        {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", ["b"]]},
        {"name": "pixels", "datatype": "FP32", "shape": [2, 2], "data": [1.0, 2.0, 3.0, 4.0]},
        {"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]},
    ]
    parsed = body("/v2/models/m/infer", inputs=inputs)
    assert (parsed.model, parsed.view.prompts) == ("m", ["a", "b"])


def test_what_generate_streams_always_answers_is_a_stream() -> None:
    parsed = body("/v2/models/m/generate_stream", text_input="hi")
    assert parsed.readable["stream"] is True
    assert parsed.view.prompts == ["hi"]
    assert "stream" not in body("/v2/models/m/generate", text_input="hi").readable


def test_errors_of_the_open_inference_protocol_are_a_text() -> None:
    api = named("infer")
    assert orjson.loads(api.error(Refusal(503, "No endpoint."))) == {"error": "No endpoint."}
    assert api.error_event(Refusal(503, "No endpoint.")) == b'data: {"error":"No endpoint."}\n\n'
