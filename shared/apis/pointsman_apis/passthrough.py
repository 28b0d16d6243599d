"""APIs that pass as they are: one line each.

The gateway reads which model a request is for and sends it there. It changes nothing in the body but the model's name
(where an alias was named), takes usage where the answer has it, and shows guards every string of request and answer.
"""

from collections.abc import Callable, Iterator
from typing import Final, Literal

from pydantic import JsonValue

from pointsman_apis import fields as f
from pointsman_apis.api import Api, View
from pointsman_apis.choices import ChoicesEnd, finish_reasons
from pointsman_apis.errors import (
    anthropic_error,
    inference_error,
    inference_error_event,
    openai_error,
    openai_error_event,
)
from pointsman_apis.fields import Document
from pointsman_apis.texts import no_slots
from pointsman_apis.usage import MetaInfoTail, UsageTail
from pointsman_core.refusal import Refusal

OF_A_MODEL: Final = "/v2/models/"
"""Paths of the Open Inference Protocol: the model's name follows."""
_BINARY: Final = frozenset({"data", "b64_json", "image", "image_data", "audio", "audio_data", "file_data"})
"""Members that hold Base64; their length says nothing about tokens."""


def _prompt(document: Document, media: list[str]) -> View:
    """All texts and token ids of the body, for their number of tokens."""
    del media
    prompts = [prompt for name, value in document.items() if name != "model" for prompt in _prompts(value, name)]
    return View(prompts=prompts)


def _prompts(value: JsonValue, name: str) -> Iterator[str | list[int]]:
    if isinstance(value, str):
        if name not in _BINARY and not value.startswith("data:"):
            yield value
    elif isinstance(value, dict):
        for inner, member in value.items():
            yield from _prompts(member, inner)
    elif isinstance(value, list):
        ids = [item for item in value if type(item) is int]
        if ids and len(ids) == len(value):
            yield ids
        else:
            for item in value:
                yield from _prompts(item, name)


def _tensors(document: Document, media: list[str]) -> View:
    """The texts of a request's tensors of bytes. Other tensors are numbers, which are no tokens."""
    del media
    inputs = document.get("inputs")
    tensors = [each for each in inputs if isinstance(each, dict)] if isinstance(inputs, list) else []
    texts = [text for each in tensors if each.get("datatype") == "BYTES" for text in _prompts(each.get("data"), "")]
    return View(prompts=[text for text in texts if isinstance(text, str)])


def _no_prompt(document: Document, media: list[str]) -> View:
    """The view of a request that needs no model."""
    del document, media
    return View(prompts=[])


def _api(
    name: str,
    *paths: str,
    methods: tuple[str, ...] = ("POST",),
    body: Literal["json", "form", "none"] = "json",
    works: bool = True,
    generates: bool = False,
    usage: Callable[[], UsageTail] = UsageTail,
    error: Callable[[Refusal], bytes] = openai_error,
    error_event: Callable[[Refusal], bytes] = openai_error_event,
    view: Callable[[Document, list[str]], View] = _prompt,
    streams: bool = False,
) -> Api:
    """`works`: a model works for it, so that its prompt counts. The first path is the one that is named in errors."""
    path, *also = paths or ("",)
    return Api(
        name=name,
        path=path,
        also=tuple(also),
        methods=methods,
        body=body,
        passed=True,
        fields={"model": f.TEXT, "stream": f.FLAG} if body == "json" else {},
        view=view if works else _no_prompt,
        generates=generates,
        streams=streams,
        keeps_prefix=False,
        slots=no_slots,
        usage=usage,
        end=lambda: ChoicesEnd({}),
        error=error,
        error_event=error_event,
        ends=finish_reasons,
    )


def _inference(
    name: str,
    what: str = "",
    *,
    methods: tuple[str, ...] = ("POST",),
    body: Literal["json", "none"] = "json",
    view: Callable[[Document, list[str]], View] = _prompt,
    generates: bool = False,
    streams: bool = False,
) -> Api:
    """A row of the Open Inference Protocol, whose paths name the model."""
    return _api(
        name,
        f"{OF_A_MODEL}{{model}}{what}",
        f"{OF_A_MODEL}{{model}}/versions/{{version}}{what}",
        methods=methods,
        body=body,
        works=body == "json",
        generates=generates,
        error=inference_error,
        error_event=inference_error_event,
        view=view,
        streams=streams,
    )


PASSED: Final = (
    _api("rerank", "/v1/rerank", "/rerank", "/v2/rerank"),
    _api("score", "/v1/score", "/score"),
    _api("classify", "/v1/classify", "/classify"),
    _api("pooling", "/pooling"),
    _api("encode", "/encode"),
    _api("moderations", "/v1/moderations"),
    _api("tokenize", "/tokenize", "/v1/tokenize", works=False),
    _api("detokenize", "/detokenize", "/v1/detokenize", works=False),
    _api("tokenizer_info", "/tokenizer_info", methods=("GET",), body="none", works=False),
    _api("model_info", "/model_info", "/get_model_info", methods=("GET",), body="none", works=False),
    _api("messages.count_tokens", "/v1/messages/count_tokens", works=False, error=anthropic_error),
    _api("audio.transcriptions", "/v1/audio/transcriptions", body="form"),
    _api("audio.translations", "/v1/audio/translations", body="form"),
    _api("audio.speech", "/v1/audio/speech"),
    _api("images.generations", "/v1/images/generations"),
    _api("images.edits", "/v1/images/edits", body="form"),
    _api("generate", "/generate", generates=True, usage=MetaInfoTail),
    _api("responses.retrieve", "/v1/responses/{id}", methods=("GET", "DELETE"), body="none", works=False),
    _api("responses.cancel", "/v1/responses/{id}/cancel", body="none", works=False),
    _api("responses.input_items", "/v1/responses/{id}/input_items", methods=("GET",), body="none", works=False),
    _inference("infer", "/infer", view=_tensors),
    _inference("infer.generate", "/generate", generates=True),
    _inference("infer.generate_stream", "/generate_stream", generates=True, streams=True),
    _inference("infer.ready", "/ready", methods=("GET",), body="none"),
    _inference("infer.model", methods=("GET",), body="none"),
)
"""`/pooling`, `/classify`, `/score`, `/rerank`, `/tokenize`, `/detokenize` and `/tokenizer_info` are vLLM's;
`/generate`, `/encode`, `/classify` and `/model_info` SGLang's; those below `/v2/models` the Open Inference Protocol's,
as KServe and Triton have it (https://github.com/kserve/open-inference-protocol); the others OpenAI's and Anthropic's,
which both have in part."""
UNKNOWN: Final = _api("")
"""Stands for a path without an API: errors are worded as OpenAI words them."""
