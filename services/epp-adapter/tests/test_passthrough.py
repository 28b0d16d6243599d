"""APIs that pass as they are, behind Envoy: forms, requests without a body, pools in the path."""

import json

import grpc
import pytest

from pointsman_contracts.journey import BodyEdit
from pointsman_testing.ext_proc import BUFFERED, DESTINATION, NONE, sent_on
from pointsman_testing.picker import StartPicker

BOTH = "10.0.0.1:8000,10.0.0.2:8000"
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\0\xff\r\n--b--\r\n'
)
KIND = {"content-type": "multipart/form-data; boundary=b"}


async def test_a_form_passes_untouched_and_an_alias_changes_the_models_name_alone(start_picker: StartPicker) -> None:
    picker = await start_picker()
    sent, after = FORM % b"speech", FORM % b"whisper-large"
    path = "/v1/audio/transcriptions"
    _, body = await sent_on(picker.client.open(), sent, path=path, headers=KIND)
    assert body.body == sent
    picker.stages.changes = {"body": (BodyEdit(field="model", value="whisper-large"),)}
    head, body = await sent_on(picker.client.open(), sent, path=path, headers=KIND)
    assert (body.body, head.set["content-length"]) == (after, str(len(after)))


async def test_a_request_without_a_body_is_decided_and_sent_on_by_its_headers(start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = picker.client.open()
    await exchange.request(method="GET", path="/pools/llama-8b/tokenizer_info?x=1", end=True)
    head = await exchange.reply()
    assert (head.kind, head.set[DESTINATION], head.set[":path"]) == ("request_headers", BOTH, "/tokenizer_info?x=1")
    assert "content-length" not in head.set
    await exchange.response(end=True)
    assert (await exchange.reply()).kind == "response_headers"
    assert await exchange.ended() is grpc.StatusCode.OK
    [(request, body, _)] = picker.stages.asked
    assert (request.method, request.path, body) == ("GET", "/pools/llama-8b/tokenizer_info", b"")


async def test_a_slash_at_the_end_goes_through_the_stages_and_not_to_the_engine(start_picker: StartPicker) -> None:
    picker = await start_picker(other_paths=True)
    head, _ = await sent_on(picker.client.open(), path="/v1/chat/completions/")
    assert head.set[":path"] == "/v1/chat/completions"
    assert picker.stages.asked[0][0].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/v1/rerank", 405, "use POST"),
        ("POST", "/v1/rerankk", 404, "Did you mean /v1/rerank"),
        ("POST", "/v1/responses/r", 405, "use GET, DELETE"),
    ],
)
async def test_the_error_for_a_wrong_method_or_path_names_the_right_ones(
    start_picker: StartPicker, method: str, path: str, status: int, words: str
) -> None:
    picker = await start_picker()
    exchange = picker.client.open()
    await exchange.request(method=method, path=path, end=True)
    refused = await exchange.reply()
    assert refused.status == status
    assert words in json.loads(refused.body or b"")["error"]["message"]


async def test_a_trusted_proxys_rewrite_names_the_model_of_what_has_no_body(start_picker: StartPicker) -> None:
    picker = await start_picker(trusted_proxies=["10.9.0.0/16"])
    exchange = picker.client.open()
    rewrite = {"x-llm-d-model-name-rewrite": "llama-8b"}
    await exchange.request(method="GET", path="/tokenizer_info", headers=rewrite, end=True, modes=(BUFFERED, NONE))
    await exchange.reply()
    assert picker.stages.asked[0][0].model == "llama-8b"
