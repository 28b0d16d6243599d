"""Parsing of the five APIs: what is kept, what is refused and in which words."""

import json
from typing import Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_apis import READ
from pointsman_apis.api import Api
from pointsman_apis.requests import StructuredBody, parse
from pointsman_core.refusal import Refusal

PATHS: Final = {api.name: api.path for api in READ}
GOOD: Final[dict[str, dict[str, JsonValue]]] = {
    "chat.completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi"},
    "embeddings": {"model": "m", "input": ["hi", "you"]},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]},
}


def parsed(api: str, document: object) -> StructuredBody:
    return parse(PATHS[api], orjson.dumps(document))


def refusal(api: str, document: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parsed(api, document)
    return caught.value


def raw_refusal(raw: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(PATHS["chat.completions"], raw)
    return caught.value


@pytest.mark.requirement("S4-1", "S4-2", "S4-8")
@pytest.mark.parametrize("api", READ, ids=lambda api: api.name)
def test_a_body_has_the_view_of_its_api_and_exactly_one_of_a_conversation_and_prompts(api: Api) -> None:
    body = parsed(api.name, GOOD[api.name])
    assert body.api is api
    assert (body.view.messages is None) != (body.view.prompts is None)
    assert (body.view.messages is not None) == (api.name in ("chat.completions", "responses", "messages"))
    assert body.model == "m"


@pytest.mark.requirement("S4-4", "S4-15", "S4-16", "S4-21")
def test_unknown_and_engine_specific_fields_survive_in_document_and_bytes() -> None:
    raw = b' {"model" : "m", "messages":[{"role":"user","content":"hi"}], "top_k": 20, "x": {"deep": [1.50, null]}}\n'
    body = parse(PATHS["chat.completions"], raw)
    assert body.raw is raw
    assert body.document["x"] == {"deep": [1.5, None]}
    assert body.document["top_k"] == 20


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "The body is empty; a JSON object is expected."),
        (b"hello", "line 1, column 1"),
        (b'{"model": "m", "messages": [{"role"', "The body seems to be cut off."),
        (b'{"model": "m"} {}', "unexpected content after document"),
        (b'{"model": NaN}', "NaN and Infinity are not JSON"),
        (b'{"model": -Infinity}', "NaN and Infinity are not JSON"),
        (b'{"model": 1e999}', "infinity"),
        (b'{"model": "a\x00b"}', "control character"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "a\\u0000b"}]}', "NUL character"),
        (b'{"model": "\\ud800"}', "surrogate"),
        (b'{"model": "\xff\xfe"}', "not valid UTF-8"),
        (b'{"model": "\xed\xa0\x80"}', "not valid UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"[]", "must be a JSON object; got an array"),
        (b'"text"', "must be a JSON object; got a string"),
        (b"null", "must be a JSON object; got null"),
    ],
)
def test_a_body_that_is_not_a_json_object_is_refused_with_its_fault(raw: bytes, words: str) -> None:
    refused = raw_refusal(raw)
    assert refused.status == 400
    assert refused.code == "invalid_json"
    assert words in refused.message


def test_a_body_that_nests_deeper_than_can_be_read_is_refused_alike() -> None:
    for levels in (1025, 10_000):
        refused = raw_refusal(b"[" * levels + b"]" * levels)
        assert (refused.status, refused.code) == (400, "body_too_complex")


def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    document = {"model": "m", "prompt": "write \\u0000 in C"}
    assert parsed("completions", document).document == document


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("space", ["", " "])
def test_a_member_that_occurs_twice_is_refused_on_every_api(api: str, space: str) -> None:
    separators = (f",{space}", f":{space}")
    good = json.dumps(GOOD[api] | {"metadata": {"a": {"b": "x: y"}}}, separators=separators)
    parse(PATHS[api], good.encode())
    for once, twice in (
        (f'"model":{space}"m"', '"model": "a", "model": "m"'),
        (f'"b":{space}"x: y"', '"b": 1, "\\u0062": 2'),
        (good[1:-1], f'{good[1:-1]}, "\\u006dodel": "other"'),
    ):
        raw = good.replace(once, twice, 1).encode()
        with pytest.raises(Refusal) as refused:
            parse(PATHS[api], memoryview(raw))
        assert (refused.value.status, refused.value.code) == (400, "duplicate_member")
        assert refused.value.param in ("model", "b")


def test_a_name_that_occurs_twice_is_only_repeated_where_it_is_one() -> None:
    refused = raw_refusal(b'{"model": "m", "messages": [], "metadata": {"my secret": 1, "my secret": 2}}')
    assert (refused.code, refused.param) == ("duplicate_member", None)
    assert "secret" not in refused.message


WRONG: Final[list[tuple[str, dict[str, JsonValue], str, str]]] = [
    ("chat.completions", {"model": None}, "model", "Missing required parameter: 'model'."),
    ("chat.completions", {"model": 3}, "model", "expected a string, but got an integer"),
    ("chat.completions", {"model": ""}, "model", "the name of a model, but it is empty"),
    ("chat.completions", {"model": "   "}, "model", "the name of a model, but it is empty"),
    ("chat.completions", {"model": "a\nb"}, "model", "printable characters"),
    ("chat.completions", {"model": "x" * 257}, "model", "at most 256"),
    ("chat.completions", {"messages": None}, "messages", "Missing required parameter: 'messages'."),
    ("chat.completions", {"messages": "hi"}, "messages", "expected an array, but got a string"),
    ("chat.completions", {"messages": []}, "messages", "at least one message"),
    ("chat.completions", {"messages": ["hi"]}, "messages[0]", "expected an object, but got a string"),
    ("chat.completions", {"messages": [{"content": "x"}]}, "messages[0].role", "Missing required parameter"),
    ("chat.completions", {"messages": [{"role": 1}]}, "messages[0].role", "expected a string"),
    (
        "chat.completions",
        {"messages": [{"role": "user", "content": 1}]},
        "messages[0].content",
        "expected a string or an array of content parts, but got an integer",
    ),
    (
        "chat.completions",
        {"messages": [{"role": "user", "content": [7]}]},
        "messages[0].content[0]",
        "expected an object",
    ),
    (
        "chat.completions",
        {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
        "messages[0].content[0].type",
        "Missing required parameter",
    ),
    (
        "chat.completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        "messages[0].content[0].text",
        "expected a string",
    ),
    (
        "chat.completions",
        {"messages": [{"role": "assistant", "tool_calls": {}}]},
        "messages[0].tool_calls",
        "expected an array",
    ),
    ("chat.completions", {"stream": "yes"}, "stream", "expected a boolean, but got a string"),
    ("chat.completions", {"stream": 1}, "stream", "expected a boolean, but got an integer"),
    ("chat.completions", {"temperature": "hot"}, "temperature", "expected a number of 0 or more, but got a string"),
    ("chat.completions", {"temperature": True}, "temperature", "expected a number of 0 or more, but got a boolean"),
    ("chat.completions", {"max_tokens": 1.5}, "max_tokens", "expected an integer of 0 or more, but got a number"),
    ("chat.completions", {"max_tokens": -1}, "max_tokens", "expected an integer of 0 or more, but got -1"),
    ("chat.completions", {"max_completion_tokens": 0}, "max_completion_tokens", "an integer of 1 or more"),
    ("chat.completions", {"n": True}, "n", "but got a boolean"),
    ("chat.completions", {"tools": {}}, "tools", "expected an array, but got an object"),
    ("chat.completions", {"tools": [1]}, "tools[0]", "expected an object, but got an integer"),
    ("chat.completions", {"stop": 5}, "stop", "expected a string or an array"),
    ("chat.completions", {"response_format": "json"}, "response_format", "expected an object"),
    ("chat.completions", {"stop": [1]}, "stop[0]", "expected a string, but got an integer"),
    ("chat.completions", {"stop": ["a", None]}, "stop[1]", "expected a string, but got null"),
    ("completions", {"stop": [[[]]]}, "stop[0]", "expected a string, but got an array"),
    ("messages", {"stop_sequences": [1]}, "stop_sequences[0]", "expected a string, but got an integer"),
    ("chat.completions", {"documents": [1]}, "documents[0]", "expected an object, but got an integer"),
    ("chat.completions", {"functions": ["f"]}, "functions[0]", "expected an object, but got a string"),
    ("chat.completions", {"modalities": [None]}, "modalities[0]", "expected a string, but got null"),
    ("chat.completions", {"store": "x"}, "store", "expected a boolean, but got a string"),
    ("responses", {"tools": [1]}, "tools[0]", "expected an object, but got an integer"),
    ("chat.completions", {"temperature": -1}, "temperature", "expected a number of 0 or more, but got -1"),
    ("messages", {"temperature": -0.1}, "temperature", "expected a number of 0 or more, but got -0.1"),
    ("completions", {"top_p": 7}, "top_p", "expected a number from 0 to 1, but got 7"),
    ("responses", {"top_p": -0.5}, "top_p", "expected a number from 0 to 1, but got -0.5"),
    ("chat.completions", {"top_logprobs": -2}, "top_logprobs", "-1 for all of them, but got -2"),
    ("chat.completions", {"messages": [{"role": "user"}]}, "messages[0].content", "Missing required parameter"),
    (
        "chat.completions",
        {"messages": [{"role": "tool", "tool_call_id": "1", "content": None}]},
        "messages[0].content",
        "Missing required parameter",
    ),
    (
        "chat.completions",
        {"messages": [{"role": "assistant", "tool_calls": ["f"]}]},
        "messages[0].tool_calls[0]",
        "expected an object, but got a string",
    ),
    ("completions", {"prompt": ""}, "prompt", "it is empty"),
    ("completions", {"prompt": None}, "prompt", "Missing required parameter: 'prompt'."),
    ("completions", {"prompt": 5}, "prompt", "expected a string or an array, but got an integer"),
    ("completions", {"prompt": []}, "prompt", "it is empty"),
    ("completions", {"prompt": [1, "a"]}, "prompt[1]", "expected an integer, but got a string"),
    ("completions", {"prompt": [1, -1]}, "prompt[1]", "a token id from 0 to 4294967295"),
    ("completions", {"prompt": ["a", {}]}, "prompt[1]", "a string or an array of token ids, but got an object"),
    ("completions", {"prompt": [[1, True]]}, "prompt[0]", "expected an integer, but got a boolean"),
    ("completions", {"logprobs": True}, "logprobs", "expected an integer of 0 or more"),
    ("embeddings", {"input": None}, "input", "Missing required parameter: 'input'."),
    ("embeddings", {"input": [[]]}, "input[0]", "at least one token id"),
    ("embeddings", {"input": [{"text": 1}]}, "input[0].text", "expected a string"),
    ("embeddings", {"input": [{"text": "a"}, [1]]}, "input[1]", "expected a string or an object"),
    ("embeddings", {"input": None, "messages": []}, "messages", "it is empty"),
    (
        "embeddings",
        {"input": None, "messages": [{"role": "user"}]},
        "messages[0].content",
        "Missing required parameter",
    ),
    ("embeddings", {"dimensions": 0}, "dimensions", "an integer of 1 or more"),
    ("responses", {"input": None}, "input", "Missing required parameter: 'input'."),
    ("responses", {"input": []}, "input", "it is empty"),
    ("responses", {"input": ["x"]}, "input[0]", "expected an object"),
    ("responses", {"instructions": 1}, "instructions", "expected a string"),
    ("messages", {"max_tokens": None}, "max_tokens", "Missing required parameter: 'max_tokens'."),
    ("messages", {"system": 1}, "system", "expected a string or an array"),
    ("messages", {"messages": [{"role": "user"}]}, "messages[0].content", "Missing required parameter"),
]


@pytest.mark.parametrize(("api", "change", "param", "words"), WRONG)
def test_a_wrong_field_is_named_with_what_would_be_right(
    api: str, change: dict[str, JsonValue], param: str, words: str
) -> None:
    refused = refusal(api, GOOD[api] | change)
    assert refused.status == 400
    assert refused.type == "invalid_request_error"
    assert refused.param is not None
    assert refused.param.startswith(param)
    assert words in refused.message


@pytest.mark.parametrize(
    ("part", "param", "words"),
    [
        ({"type": "image_url", "image_url": 5}, "image_url", "expected a string or an object, but got an integer"),
        ({"type": "image_url", "image_url": {"url": [1]}}, "image_url.url", "expected a string, but got an array"),
        ({"type": "input_image", "image_url": 5}, "image_url", "expected a string or an object, but got an integer"),
        ({"type": "video_url", "video_url": True}, "video_url", "expected a string or an object, but got a boolean"),
        ({"type": "audio_url", "audio_url": {"url": 1}}, "audio_url.url", "expected a string, but got an integer"),
        ({"type": "input_audio", "input_audio": "x"}, "input_audio", "expected an object, but got a string"),
        ({"type": "input_audio", "input_audio": {"data": 1}}, "input_audio.data", "expected a string"),
        ({"type": "file", "file": "x"}, "file", "expected an object, but got a string"),
        ({"type": "file", "file": {"file_data": 1}}, "file.file_data", "expected a string"),
        ({"type": "image", "source": "x"}, "source", "expected an object, but got a string"),
        ({"type": "refusal", "refusal": 1}, "refusal", "expected a string, but got an integer"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_content_part_of_the_wrong_type_is_named_by_its_path(
    part: dict[str, JsonValue], param: str, words: str
) -> None:
    content = [{"type": "text", "text": "x"}, part]
    refused = refusal("chat.completions", {"model": "m", "messages": [{"role": "user", "content": content}]})
    assert (refused.status, refused.code) == (400, "invalid_type")
    assert refused.param == f"messages[0].content[1].{param}"
    assert words in refused.message


@pytest.mark.parametrize(
    ("api", "change"),
    [
        ("chat.completions", {"stop": []}),
        ("chat.completions", {"stop": "x", "documents": [], "modalities": ["text"], "store": None}),
        ("chat.completions", {"temperature": 2.5, "top_p": 1}),
        ("chat.completions", {"temperature": 0, "top_p": 0}),
        ("chat.completions", {"stream_options": {"include_usage": True}}),
        ("chat.completions", {"logprobs": True, "top_logprobs": -1}),
        ("completions", {"logprobs": -1}),
        ("chat.completions", {"reasoning_effort": 0.5}),
        ("completions", {"prompt": "", "prompt_embeds": "AAAA"}),
        ("completions", {"prompt": None, "prompt_embeds": "AAAA"}),
        ("embeddings", {"input": ""}),
        ("embeddings", {"input": None, "messages": [{"role": "user", "content": "hi"}]}),
        (
            "embeddings",
            {"input": ["a", {"text": "b", "image": "data:image/png;base64,AAAA"}, {"image": "https://x/y"}]},
        ),
        ("responses", {"input": ""}),
        ("chat.completions", {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]}),
        ("chat.completions", {"messages": [{"role": "assistant", "reasoning_content": "so"}]}),
        ("chat.completions", {"messages": [{"role": "system", "tools": [{"type": "function"}]}]}),
        ("chat.completions", {"messages": [{"role": "critic"}]}),
        (
            "chat.completions",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": "https://x/y.png"},
                            {"type": "image_url", "image_url": None, "uuid": "u"},
                            {"type": "image", "image": "https://x/y.png"},
                            {"type": "thinking", "thinking": "so"},
                            "text",
                        ],
                    }
                ]
            },
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_value_that_some_engine_takes_is_left_to_the_engine(api: str, change: dict[str, JsonValue]) -> None:
    assert parsed(api, GOOD[api] | change).model == "m"


@pytest.mark.parametrize("api", PATHS)
def test_a_null_field_counts_as_absent(api: str) -> None:
    assert (
        parsed(api, GOOD[api] | {"temperature": None, "stream": None, "n": None, "stop": None, "user": None}).model
        == "m"
    )


def test_an_unknown_path_names_the_known_ones() -> None:
    with pytest.raises(Refusal) as caught:
        parse("/v1/chat", b"{}")
    assert caught.value.status == 404
    assert "/v1/chat/completions" in caught.value.message


def test_a_stored_response_needs_no_input() -> None:
    body = parsed("responses", {"model": "m", "previous_response_id": "r1"})
    assert body.view.messages == []


JSON: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
MESSAGE: Final = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]) | JSON}, optional={"content": st.text() | JSON, "tool_calls": JSON}
)
DOCUMENTS: Final = st.fixed_dictionaries(
    {},
    optional={
        "model": st.text(min_size=1) | JSON,
        "messages": st.lists(MESSAGE, max_size=3) | JSON,
        "prompt": st.text() | st.lists(st.integers(0, 9)) | JSON,
        "input": st.text() | JSON,
        "max_tokens": st.integers(0, 9) | JSON,
        "stream": st.booleans() | JSON,
        "tools": JSON,
        "anything": JSON,
    },
)


def outcome(path: str, raw: bytes) -> StructuredBody | Refusal:
    try:
        return parse(path, raw)
    except Refusal as refused:
        return refused


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(sorted(PATHS.values())), document=DOCUMENTS | JSON, ascii_only=st.booleans())
def test_any_json_is_refused_with_a_reason_or_kept_whole(path: str, document: JsonValue, ascii_only: bool) -> None:
    raw = json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    result = outcome(path, raw)
    if isinstance(result, Refusal):
        assert result.status == 400
        assert result.message
    else:
        assert result.raw == raw
        assert result.document == document


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(GOOD)), st.binary(max_size=8), st.data())
def test_damaged_bytes_never_do_worse_than_a_refusal(api: str, damage: bytes, data: st.DataObject) -> None:
    raw = orjson.dumps(GOOD[api])
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    result = outcome(PATHS[api], raw[:start] + damage + raw[end:])
    assert isinstance(result, StructuredBody) or result.status == 400


@pytest.mark.parametrize(
    ("api", "field"),
    [(api.name, field) for api in READ for field in api.fields],
)
def test_every_known_field_of_a_wrong_type_is_refused_without_its_value(api: str, field: str) -> None:
    canary = "canary-7c1f"
    wrong: list[JsonValue] = [{canary: canary}, [canary], canary, 10**7]
    refused = [result for value in wrong if isinstance(result := outcome_of(api, {field: value}), Refusal)]
    assert refused
    for result in refused:
        assert result.param is not None
        assert result.param.startswith(field)
        assert canary not in result.message


def outcome_of(api: str, change: dict[str, JsonValue]) -> StructuredBody | Refusal:
    return outcome(PATHS[api], orjson.dumps(GOOD[api] | change))


def test_no_refusal_of_broken_json_repeats_what_people_wrote() -> None:
    canary = "canary-7c1f"
    assert canary not in raw_refusal(f'{{"model": "m", "messages": [{{"role": "{canary}'.encode()).message


@pytest.mark.parametrize(
    ("member", "value", "refused"),
    [
        ("kv_transfer_params", {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_host": "10.0.0.1"}, True),
        ("kv_transfer_params", {"remote_engine_id": "x"}, True),
        ("kv_transfer_params", {"lmcache.tag.user": "a"}, False),
        ("kv_transfer_params", None, False),
        ("disaggregated_params", {"request_type": "generation_only"}, True),
        ("bootstrap_host", "10.0.0.1", True),
        ("bootstrap_room", 7, True),
        ("bootstrap_room", None, False),
    ],
)
@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}),
        ("/v1/responses", {"input": "x"}),
    ],
)
def test_a_client_does_not_decide_where_engines_fetch_prompts_from(
    path: str, prompt: dict[str, object], member: str, value: object, refused: bool
) -> None:
    body = orjson.dumps({"model": "m", **prompt, member: value})
    for _ in range(2):  # the second one is of a shape that is known
        if refused:
            with pytest.raises(Refusal) as raised:
                parse(path, body)
            assert (raised.value.status, raised.value.param) == (400, member)
        else:
            parse(path, body)
