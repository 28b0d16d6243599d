"""The catalogue: answers of engines and providers as they really are, each with its source. A new quirk is one entry.

Sources are public reports (owner/repository #number), makers' documents, or the standard that allows the quirk.
"""

import codecs
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from .forms import COUNTS, NAME, STREAM, Part, chat_chunk, event, named

SSE: Final = "https://html.spec.whatwg.org/multipage/server-sent-events.html"
HTTP: Final = "RFC 9110"
CHAT: Final = frozenset({"chat"})
MESSAGES: Final = frozenset({"messages"})
CONVERSE: Final = frozenset({"converse"})
RESPONSES: Final = frozenset({"responses"})
EVENTS: Final = CHAT | MESSAGES | RESPONSES
ALL: Final = EVENTS | CONVERSE
ESTIMATED: Final = "estimated"
POOL: Final = frozenset({"pool"})
"""Places of engines, whose own errors are judged by comparison."""

Usage = tuple[int, int] | Literal["estimated"] | None


@dataclass(frozen=True)
class Quirk:
    """One answer, and the reading that is right."""

    name: str
    source: str
    forms: frozenset[str] = ALL
    """The APIs whose services do it."""
    modes: tuple[str, ...] = ("whole", "stream")

    parts: Sequence[Part] = STREAM
    counts: tuple[str, str] | None = COUNTS
    body: bytes | None = None
    """In place of the document, or of the stream, that the parts make."""
    edit: Callable[[bytes], bytes] | None = None
    """Changes the bytes of document or stream."""
    cut: int = 0
    """The bytes come in pieces of this size; 0: as the parts."""
    status: int = 200
    content_type: str | None = None
    """None: the form's own; empty: none."""
    headers: tuple[tuple[str, str], ...] = ()
    framing: Literal["chunked", "length", "close"] = "chunked"
    before: bytes = b""
    """Bytes before the head."""
    trailers: bytes = b""
    breaks: bool = False
    """The connection breaks off behind the last byte."""

    text: str = "Hello far"
    thought: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    """Names and arguments of the calls of tools."""
    usage: Usage = (5, 3)
    """None: whatever it is."""
    fails: int = 0
    """Status of the client's error where no other model can answer; 0 for a good answer."""
    code: str = ""
    """Of the error, or a part of its body."""
    details: tuple[str, ...] = ()
    """Further parts of its body."""
    cut_off: bool = False
    """The answer had begun: what there is of it comes, and an error behind it."""
    without: frozenset[str] = frozenset()
    """Places that can't do it: `envoy`, `envoy/whole`."""


Edit = Callable[[bytes], bytes]


def stream(name: str, source: str, forms: frozenset[str] = ALL, /, edit: Edit | None = None, **how: Any) -> Quirk:
    """A quirk of streams."""
    return Quirk(name, source, forms, ("stream",), edit=edit, **how)


def whole(name: str, source: str, forms: frozenset[str] = ALL, /, edit: Edit | None = None, **how: Any) -> Quirk:
    """A quirk of documents."""
    return Quirk(name, source, forms, ("whole",), edit=edit, **how)


def _delta(text: str) -> bytes:
    """Anthropic's event that brings a text."""
    delta = {"type": "text_delta", "text": text}
    return named({"type": "content_block_delta", "index": 0, "delta": delta})


def _json(**members: Any) -> bytes:
    return json.dumps(members).encode()


BEGUN: Final[tuple[Part, ...]] = ("role", "=Hello", "= far")
ENDED: Final[tuple[Part, ...]] = (*BEGUN, "finish")
TOLD: Final[tuple[Part, ...]] = (*BEGUN, "finish", "usage")
CALL: Final[tuple[Part, ...]] = ("role", ("call", 0, "t1", "pay"))
CALLED: Final[tuple[Part, ...]] = (("end", "tools"), "usage", "done")
BROKEN_MESSAGE: Final = named({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


def _fails(name: str, source: str, forms: frozenset[str], body: bytes, status: int, code: str = "") -> Quirk:
    """An error with status 200, as a document."""
    return whole(name, source, forms, body=body, fails=status, code=code)


def _broken(name: str, source: str, forms: frozenset[str], error: bytes, code: str) -> tuple[Quirk, Quirk]:
    """An error as an event: before the first word, where another model answers, and behind it."""
    return (
        stream(f"{name}, at once", source, forms, parts=("role", error), fails=500, code=code),
        stream(f"{name}, in the middle", source, forms, parts=(*BEGUN, error), cut_off=True, code=code, usage=None),
    )


ERRORS: Final = (
    _fails("error with 200", "decolua/9router #3242", EVENTS, _json(error={"message": "busy", "code": 502}), 502),
    _fails("error with 200, a text", "Aider-AI/aider #3550", EVENTS, _json(error="upstream is gone"), 502),
    _fails(
        "error with 200, of Anthropic",
        "decolua/9router #2727",
        ALL,
        _json(type="error", error={"type": "overloaded_error", "message": "Overloaded"}),
        503,
        "overloaded",
    ),
    _fails(
        "error with 200, of vLLM's first versions",
        "https://docs.vllm.ai, ErrorResponse of versions before 0.9",
        CHAT,
        _json(object="error", message="too many", type="RateLimitError", code=429),
        429,
    ),
    _fails(
        "error with 200, of FastAPI",
        "https://fastapi.tiangolo.com/tutorial/handling-errors/",
        EVENTS,
        _json(detail="Internal Server Error"),
        502,
    ),
    _fails("error with 200, of AWS", "stenolabs/stenoai #361", CONVERSE, _json(message="Unknown operation"), 502),
    _fails(
        "error with 200, of Google, in a list",
        "https://cloud.google.com/apis/design/errors",
        CHAT,
        json.dumps([{"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED"}}]).encode(),
        429,
    ),
    _fails(
        "error with 200, that is the request's",
        "https://platform.openai.com/docs/guides/error-codes",
        CHAT,
        _json(error={"message": "Bad n.", "type": "invalid_request_error", "param": "n", "code": "bad_n"}),
        400,
        "bad_n",
    ),
    _fails(
        "error inside the choice",
        "https://openrouter.ai/docs/api-reference/errors",
        CHAT,
        _json(
            model=NAME,
            choices=[
                {
                    "index": 0,
                    "message": {"content": ""},
                    "error": {"code": 502, "message": "x"},
                    "finish_reason": "error",
                }
            ],
        ),
        502,
    ),
    _fails("a page of HTML", "decolua/9router #2727", ALL, b"<html><body>502 Bad Gateway</body></html>", 502),
    _fails("nothing at all", HTTP, ALL, b"", 502),
    _fails("JSON that ends early", "RFC 9112, section 8", ALL, b'{"id": "c-1", "choices": [{"index": 0, "mess', 502),
    _fails(
        "a response that failed",
        "https://platform.openai.com/docs/api-reference/responses/object",
        RESPONSES,
        _json(id="r", object="response", status="failed", output=[], error={"code": "server_error", "message": "x"}),
        502,
        "server_error",
    ),
    stream(
        "JSON with an error, labelled as a stream",
        "decolua/9router #3301",
        EVENTS,
        body=_json(error={"message": "busy", "type": "overloaded_error", "code": 503}),
        fails=503,
    ),
    *_broken(
        "OpenAI's error event",
        "https://platform.openai.com/docs/api-reference/streaming",
        CHAT,
        event(_json(error={"message": "x", "type": "server_error", "code": "rate_limit_exceeded"})),
        "rate_limit_exceeded",
    ),
    *_broken(
        "vLLM's error event",
        "https://docs.vllm.ai, ErrorResponse of versions before 0.9",
        CHAT,
        event(_json(object="error", message="x", code=500)),
        "",
    ),
    *_broken(
        "Anthropic's error event",
        "https://docs.anthropic.com/en/api/errors",
        MESSAGES,
        BROKEN_MESSAGE,
        "overloaded_error",
    ),
    *_broken(
        "OpenRouter's error beside the choice",
        "https://openrouter.ai/docs/api-reference/errors",
        CHAT,
        event(
            _json(
                error={"code": 502, "message": "x"},
                choices=[{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
            )
        ),
        "",
    ),
    *_broken(
        "an error that is a text", "openclaw/clawrouter #101", CHAT, event(_json(error="model runner stopped")), ""
    ),
    *_broken(
        "an error event of another API",
        "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
        MESSAGES,
        event(_json(error={"message": "x", "code": 500})),
        "",
    ),
    *_broken(
        "OpenAI's error event of responses",
        "https://platform.openai.com/docs/api-reference/responses-streaming",
        RESPONSES,
        named({"type": "error", "code": "server_error", "message": "x", "param": None}),
        "server_error",
    ),
)


def _refused(name: str, source: str, forms: frozenset[str], status: int, body: bytes, **how: Any) -> Quirk:
    """An error with a status of its own."""
    how = {"fails": status, **how}
    return whole(name, source, forms, None, body=body, status=status, **how)


_BAD_N: Final = {"message": "Bad n.", "type": "invalid_request_error", "param": "n", "code": "bad_n"}
STATUSES: Final = (
    _refused(
        "400 with details",
        "https://learn.microsoft.com/azure/ai-services/openai/concepts/content-filter",
        EVENTS,
        status=400,
        body=_json(error={**_BAD_N, "innererror": {"code": "ResponsibleAIPolicyViolation"}}),
        code="Bad n.",
        details=("bad_n", '"param":"n"', "ResponsibleAIPolicyViolation"),
    ),
    _refused(
        "400 of another API",
        "https://docs.anthropic.com/en/api/errors",
        EVENTS,
        status=400,
        body=_json(type="error", error={"type": "invalid_request_error", "message": "Bad n."}),
        code="Bad n.",
    ),
    _refused(
        "400 of vLLM's first versions",
        "https://docs.vllm.ai, ErrorResponse of versions before 0.9",
        CHAT | MESSAGES,
        status=400,
        body=_json(object="error", message="Bad n.", type="BadRequestError", param="n", code=400),
        code="Bad n.",
        details=('"param":"n"',),
    ),
    _refused(
        "400 of AWS",
        "https://docs.aws.amazon.com/bedrock/latest/APIReference/CommonErrors.html",
        CONVERSE,
        status=400,
        body=_json(message="Bad n."),
        code="Bad n.",
    ),
    _refused(
        "422 of FastAPI",
        "https://fastapi.tiangolo.com/tutorial/handling-errors/",
        CHAT | MESSAGES,
        status=422,
        body=_json(detail=[{"loc": ["body", "n"], "msg": "Bad n.", "type": "value_error"}]),
        code="Bad n.",
    ),
    _refused("500 without a word", HTTP, ALL, status=500, body=b""),
    _refused("500 that is a text", "decolua/9router #2727", ALL, 500, b"upstream is gone", content_type="text/plain"),
    _refused(
        "503 in OpenAI's shape",
        "https://platform.openai.com/docs/guides/error-codes",
        EVENTS,
        status=503,
        body=_json(error={"message": "busy", "type": "server_error", "param": None, "code": None}),
        fails=500,
    ),
    _refused(
        "502 as a page of HTML",
        "decolua/9router #2727",
        ALL,
        502,
        b"<html>gone</html>",
        content_type="text/html",
        fails=500,
    ),
)

_NO_CREDIT: Final = "Your credit balance is too low to access the Anthropic API."
_NO_MODEL: Final = {"message": "The model `x` does not exist.", "type": "invalid_request_error", "param": None}
_FLAGGED: Final = {"reasons": ["harassment"], "flagged_input": "..."}
MEANINGS: Final = (
    _refused(
        "a wrong key, as Google says it",
        "can1357/oh-my-pi #449",
        CHAT,
        400,
        json.dumps(
            [
                {
                    "error": {
                        "code": 400,
                        "message": "API key not valid. Please pass a valid API key.",
                        "status": "INVALID_ARGUMENT",
                        "details": [{"@type": "x/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
                    }
                }
            ]
        ).encode(),
        fails=502,
        code="provider_credential",
        without=POOL,
    ),
    _refused(
        "no deployment, as Azure says it",
        "BerriAI/litellm #3884",
        CHAT,
        404,
        _json(error={"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}),
        fails=502,
        code="provider_lacks_model",
        without=POOL,
    ),
    _refused(
        "no model, as OpenAI says it",
        "agentscope-ai/QwenPaw #6302",
        EVENTS,
        404,
        _json(error={**_NO_MODEL, "code": "model_not_found"}),
        fails=502,
        code="provider_lacks_model",
        without=POOL,
    ),
    _refused(
        "no model, with 400",
        "MiXaiLL76/auto_ai_router #171",
        CHAT,
        400,
        _json(error={**_NO_MODEL, "message": "Model Not Exist"}),
        fails=502,
        code="provider_lacks_model",
        without=POOL,
    ),
    _refused(
        "a model that is gone",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/model-lifecycle.html",
        CONVERSE,
        404,
        _json(message="This model version has reached the end of its life."),
        fails=502,
        code="provider_lacks_model",
    ),
    _refused(
        "no such path",
        "https://fastapi.tiangolo.com/tutorial/handling-errors/",
        EVENTS,
        404,
        _json(detail="Not Found"),
        fails=502,
        code="provider_lacks_model",
        without=POOL,
    ),
    _refused(
        "content refused with 403, as xAI does it",
        "theopenco/llmgateway #1785",
        CHAT,
        403,
        _json(code="The caller does not have permission", error="Content violates usage guidelines. API key ID: k-1"),
        fails=400,
        code="content_policy_violation",
        without=POOL,
    ),
    _refused(
        "content refused with 403, as OpenRouter does it",
        "BerriAI/litellm #9305",
        CHAT,
        403,
        _json(error={"code": 403, "message": "x requires moderation. Your input was flagged", "metadata": _FLAGGED}),
        fails=400,
        code="content_policy_violation",
        without=POOL,
    ),
    _refused(
        "a rate limit with 400, as AWS may name it",
        "https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html",
        CONVERSE,
        400,
        _json(message="Too many requests."),
        headers=(("x-amzn-errortype", "ServiceQuotaExceededException:http://internal.amazon.com/"),),
        fails=429,
    ),
    _refused(
        "a redirect to another host",
        "https://fetch.spec.whatwg.org/#http-redirect-fetch",
        ALL,
        307,
        b"",
        headers=(("location", "http://elsewhere.invalid/v1"),),
        fails=502,
        without=POOL,
    ),
    _refused(
        "a page of Cloudflare",
        "https://developers.cloudflare.com/support/troubleshooting/http-status-codes/cloudflare-5xx-errors/",
        ALL,
        524,
        b"<html>A timeout occurred</html>",
        content_type="text/html",
        fails=500,
    ),
)

ENDS: Final = (
    stream("no mark at the end", "perplexityai/api-discussion #209", CHAT | MESSAGES, parts=TOLD),
    stream("no mark and no usage", "gethnet/litellm-connector-copilot #97", CHAT, parts=ENDED, usage=ESTIMATED),
    stream(
        "no usage behind the end",
        "https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html",
        CONVERSE,
        parts=ENDED,
        usage=ESTIMATED,
    ),
    stream("the mark alone", "decolua/9router #3051", CHAT, parts=("done",), fails=502, without=POOL),
    stream(
        "usage and the mark alone",
        "Shelpuk-AI-Technology-Consulting/kitty-bridge #131",
        CHAT,
        parts=("usage", "done"),
        fails=502,
        without=POOL,
    ),
    whole(
        "no choices",
        "BerriAI/litellm #40252",
        CHAT,
        body=_json(model=NAME, choices=[], usage={}),
        fails=502,
        without=POOL,
    ),
    stream("the mark twice", "majiayu000/litellm-rs #170", CHAT, parts=(*STREAM, "done")),
    stream("the end twice", "inflaborg/ccrelay #119", MESSAGES | RESPONSES, parts=(*STREAM, "done")),
    stream("OpenAI's mark behind Anthropic's", "inflaborg/ccrelay #119", MESSAGES, parts=(*STREAM, event(b"[DONE]"))),
    stream(
        "events behind the mark",
        "https://platform.openai.com/docs/api-reference/chat/streaming",
        CHAT,
        parts=(*STREAM, chat_chunk({"content": "lost"})),
    ),
    stream("no empty line at the end", SSE, EVENTS, edit=lambda data: data.rstrip(b"\n")),
    stream("broken off behind the mark", "StevenLooman/async_upnp_client #93", EVENTS, breaks=True),
    stream("broken off behind the reason", "can1357/oh-my-pi #9433", CHAT, parts=TOLD, breaks=True),
    stream(
        "broken off in the middle",
        "mastra-ai/mastra #22097",
        EVENTS,
        parts=BEGUN,
        breaks=True,
        cut_off=True,
        usage=ESTIMATED,
    ),
    stream(
        "ended in the middle", "anomalyco/opencode #43882", CHAT | MESSAGES, parts=BEGUN, cut_off=True, usage=ESTIMATED
    ),
    stream(
        "a call that Bedrock can't read",
        "anomalyco/opencode #46193",
        CONVERSE,
        parts=("role", ("end", "malformed_tool_use"), "usage"),
        fails=502,
        code="malformed_tool_use",
    ),
    stream(
        "a call that Bedrock can't read behind a text",
        "anomalyco/opencode #46193",
        CONVERSE,
        parts=(*BEGUN, ("end", "malformed_tool_use")),
        cut_off=True,
        code="malformed_tool_use",
        usage=None,
    ),
    _fails(
        "a call that Bedrock can't read, whole",
        "anomalyco/opencode #46193",
        CONVERSE,
        _json(output={"message": {"role": "assistant", "content": []}}, stopReason="malformed_tool_use"),
        502,
        "malformed_tool_use",
    ),
    stream(
        "a call is announced and none comes",
        "strands-rl/strands-env #252",
        MESSAGES | CONVERSE,
        parts=(*BEGUN, ("end", "tools"), "usage", "done"),
    ),
    stream("broken off behind the role", "BerriAI/litellm #4178", EVENTS, parts=("role",), breaks=True, fails=502),
    stream("ended behind the role", "deepset-ai/haystack #12721", parts=("role",), fails=502),
    stream(
        "nothing but comments",
        "https://openrouter.ai/docs/api-reference/streaming",
        EVENTS,
        parts=("comment", "comment"),
        fails=502,
    ),
    stream("an end that nothing announces", HTTP, EVENTS, framing="close"),
    whole("a document that ends with its connection", HTTP, framing="close"),
    whole("a document in chunks", HTTP),
    whole("a document with its length", HTTP, framing="length"),
)

_ZEROS: Final = event(_json(model=NAME, choices=[], usage={"prompt_tokens": 0, "completion_tokens": 0}))
USAGE: Final = (
    Quirk("usage as floats", "QuantumNous/new-api #1545", counts=("5.0", "3.0")),
    Quirk("usage as fractions", "philschmid/easyllm #40", counts=("4.75", "3.25")),
    Quirk("usage as text", "BerriAI/litellm #28024", counts=('"5"', '"3"'), usage=ESTIMATED),
    Quirk(
        "usage null", "https://platform.openai.com/docs/api-reference/chat", counts=("null", "null"), usage=ESTIMATED
    ),
    Quirk("usage negative", "RFC 8259, section 6", counts=("-5", "-3"), usage=ESTIMATED),
    Quirk("usage NaN", "sgl-project/sglang #4097", counts=("NaN", "NaN"), usage=ESTIMATED),
    Quirk("usage of which one count is NaN", "sgl-project/sglang #4097", counts=("5", "NaN"), usage=ESTIMATED),
    Quirk("usage larger than any request's", "RFC 8259, section 6", counts=("9" * 30, "9" * 30), usage=ESTIMATED),
    Quirk("usage zero beside a text", "alfredapp/openai-workflow #52", counts=("0", "0"), usage=ESTIMATED),
    whole("usage absent", "Aider-AI/aider #3550", counts=None, usage=ESTIMATED),
    stream(
        "usage in every chunk",
        "alfredapp/openai-workflow #52",
        CHAT,
        parts=("role", "usage", "=Hello", "usage", "= far", "usage", "finish", "usage", "done"),
    ),
    stream("usage early", "awslabs/llmeter #34", CHAT, parts=("usage", *ENDED, "done")),
    stream(
        "usage late, behind the mark", "Portkey-AI/gateway #1629", CHAT, parts=(*ENDED, "done", "usage"), usage=None
    ),
    stream("usage of zeros first", "router-for-me/CLIProxyAPI #4053", CHAT, parts=(_ZEROS, *STREAM)),
    stream("usage twice", "Lambdua/openai4j #60", CHAT, parts=(*TOLD, "usage", "done")),
    stream(
        "usage before the end",
        "https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html",
        CONVERSE,
        parts=(*BEGUN, "usage", "finish"),
    ),
    stream(
        "usage in the choice",
        "earendil-works/pi #2017",
        CHAT,
        parts=(*BEGUN, chat_chunk({}, "stop", usage={"prompt_tokens": 5, "completion_tokens": 3}), "done"),
    ),
    stream(
        "usage nested",
        "https://console.groq.com/docs/text-chat",
        CHAT,
        parts=(
            *BEGUN,
            event(
                _json(
                    model=NAME,
                    choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}],
                    x_groq={"usage": {"prompt_tokens": 5, "completion_tokens": 3}},
                )
            ),
            "done",
        ),
    ),
)

DELTAS: Final = (
    stream(
        "empty choices first",
        "Azure/azure-sdk-for-go #21086",
        CHAT,
        parts=(event(_json(id="", model="", choices=[], prompt_filter_results=[])), *STREAM),
    ),
    stream(
        "a choice without delta",
        "microsoft/autogen #6465",
        CHAT,
        parts=(
            "role",
            event(_json(model=NAME, choices=[{"index": 0, "finish_reason": None, "content_filter_results": {}}])),
            *STREAM[1:],
        ),
    ),
    stream("role only, twice", "langchain-ai/langchain #7296", CHAT, parts=("role", *STREAM)),
    stream(
        "content null",
        "https://platform.openai.com/docs/api-reference/chat/streaming",
        CHAT,
        parts=("role", chat_chunk({"content": None}), *STREAM[1:]),
    ),
    stream("no role at all", "chatanywhere/GPT_API_free #254", CHAT | CONVERSE, parts=STREAM[1:]),
    stream(
        "choices without index",
        "chenyme/grok2api #239",
        CHAT,
        edit=lambda data: data.replace(b'"index": 0, "delta"', b'"delta"'),
    ),
    stream(
        "thoughts first",
        "https://api-docs.deepseek.com/guides/reasoning_model",
        CHAT | MESSAGES | CONVERSE,
        parts=("role", "~Hm.", *STREAM[1:]),
        thought="Hm.",
    ),
    stream(
        "the text in the block's start",
        "Yeachan-Heo/gajae-code #1895",
        MESSAGES,
        edit=lambda data: data.replace(
            b'"content_block": {"type": "text", "text": ""}', b'"content_block": {"type": "text", "text": "Hello"}'
        ).replace(_delta("Hello"), b""),
    ),
    stream(
        "an unknown event",
        "https://docs.anthropic.com/en/docs/build-with-claude/streaming",
        MESSAGES | RESPONSES,
        parts=(*BEGUN, named({"type": "new.kind", "value": 1}), *STREAM[3:]),
    ),
    stream(
        "an unknown block",
        "https://docs.anthropic.com/en/docs/build-with-claude/streaming",
        MESSAGES,
        parts=(
            *BEGUN,
            named({"type": "content_block_start", "index": 9, "content_block": {"type": "new"}}),
            *STREAM[3:],
        ),
    ),
    stream(
        "reasons that are empty texts",
        "sgl-project/sglang #3912",
        CHAT,
        edit=lambda data: data.replace(b'"finish_reason": null', b'"finish_reason": ""'),
    ),
    stream(
        "reasons that are empty texts, and an end in the middle",
        "sgl-project/sglang #3912",
        CHAT,
        parts=BEGUN,
        edit=lambda data: data.replace(b'"finish_reason": null', b'"finish_reason": ""'),
        cut_off=True,
        usage=ESTIMATED,
    ),
    stream(
        "a reason that is new",
        "https://docs.anthropic.com/en/api/handling-stop-reasons",
        MESSAGES | CONVERSE,
        parts=(*BEGUN, ("end", "new_reason"), "usage", "done"),
    ),
    whole(
        "a content null beside calls",
        "https://platform.openai.com/docs/api-reference/chat/object",
        CHAT,
        parts=CALL,
        calls=(("pay", {}),),
        text="",
        edit=lambda data: data.replace(b'"content": ""', b'"content": null'),
    ),
)

CALLS: Final = (
    Quirk(
        "arguments whole",
        "Yeachan-Heo/gajae-code #1895",
        CHAT | MESSAGES | CONVERSE,
        parts=(*CALL, ("args", 0, '{"a": 1}'), *CALLED),
        calls=(("pay", {"a": 1}),),
        text="",
    ),
    Quirk(
        "arguments in pieces",
        "https://docs.anthropic.com/en/docs/build-with-claude/streaming",
        CHAT | MESSAGES | CONVERSE,
        parts=(*CALL, ("args", 0, '{"a"'), ("args", 0, ""), ("args", 0, ": 1}"), *CALLED),
        calls=(("pay", {"a": 1}),),
        text="",
    ),
    Quirk(
        "arguments that never come",
        "Yeachan-Heo/gajae-code #1895",
        MESSAGES | CONVERSE,
        parts=(*CALL, *CALLED),
        calls=(("pay", {}),),
        text="",
    ),
    Quirk(
        "calls one behind the other",
        "huggingface/smolagents #1958",
        CHAT | MESSAGES | CONVERSE,
        parts=(*CALL, ("args", 0, '{"a": 1}'), ("call", 1, "t2", "see"), ("args", 1, '{"b": 2}'), *CALLED),
        calls=(("pay", {"a": 1}), ("see", {"b": 2})),
        text="",
    ),
    stream(
        "interleaved calls",
        "maximhq/bifrost #1829",
        CHAT | MESSAGES | CONVERSE,
        parts=(
            *CALL,
            ("call", 1, "t2", "see"),
            ("args", 0, '{"a"'),
            ("args", 1, '{"b"'),
            ("args", 0, ": 1}"),
            ("args", 1, ": 2}"),
            *CALLED,
        ),
        calls=(("pay", {"a": 1}), ("see", {"b": 2})),
        text="",
    ),
    stream(
        "the input in the block's start",
        "Yeachan-Heo/gajae-code #1895",
        MESSAGES,
        parts=(*CALL, *CALLED),
        edit=lambda data: data.replace(b'"input": {}', b'"input": {"a": 1}'),
        calls=(("pay", {"a": 1}),),
        text="",
    ),
    stream(
        "the input in the start and in deltas",
        "Yeachan-Heo/gajae-code #1895",
        MESSAGES,
        parts=(*CALL, ("args", 0, '{"a": 1}'), *CALLED),
        edit=lambda data: data.replace(b'"input": {}', b'"input": {"a": 1}'),
        calls=(("pay", {"a": 1}),),
        text="",
    ),
    Quirk(
        "a call without id",
        "continuedev/continue #13225",
        MESSAGES,
        parts=(*CALL, ("args", 0, '{"a": 1}'), *CALLED),
        edit=lambda data: data.replace(b'"id": "t1", ', b""),
        calls=(("pay", {"a": 1}),),
        text="",
    ),
    Quirk(
        "arguments as an object",
        "mrdushidush/claudette #238",
        CHAT,
        parts=(*CALL, ("args", 0, '{"a": 1}'), *CALLED),
        edit=lambda data: data.replace(b'"arguments": "{\\"a\\": 1}"', b'"arguments": {"a": 1}'),
        calls=(("pay", {"a": 1}),),
        text="",
        without=POOL,
    ),
    whole(
        "arguments null",
        "langchain-ai/langchain #34242",
        CHAT,
        parts=CALL,
        edit=lambda data: data.replace(b'"arguments": "{}"', b'"arguments": null'),
        calls=(("pay", {}),),
        text="",
        without=POOL,
    ),
    Quirk(
        "a call with an empty id",
        "openai/openai-dotnet #428",
        CHAT,
        parts=(*CALL, ("args", 0, '{"a": 1}'), *CALLED),
        edit=lambda data: data.replace(b'"id": "t1"', b'"id": ""'),
        calls=(("pay", {"a": 1}),),
        text="",
        without=POOL,
    ),
    stream(
        "a call that ends as a text does",
        "openai/openai-python #2806",
        MESSAGES | CONVERSE,
        parts=(*CALL, ("args", 0, '{"a": 1}'), ("end", "end_turn"), "usage", "done"),
        calls=(("pay", {"a": 1}),),
        text="",
    ),
    stream(
        "calls without index",
        "openai/openai-python #2806",
        CHAT,
        parts=(*CALL, ("args", 0, '{"a": 1}'), *CALLED),
        edit=lambda data: data.replace(b'{"index": 0, "id"', b'{"id"').replace(
            b'[{"index": 0, "function"', b'[{"function"'
        ),
        calls=(("pay", {"a": 1}),),
        text="",
    ),
    whole(
        "arguments as text",
        "BerriAI/litellm #30723",
        MESSAGES,
        parts=CALL,
        edit=lambda data: data.replace(b'"input": {}', b'"input": "{\\"a\\": 1}"'),
        calls=(("pay", {"a": 1}),),
        text="",
        without=frozenset({"messages"}),
    ),
)

FRAMING: Final = (
    stream(
        "comments",
        "Wei-Shaw/sub2api #2021",
        EVENTS,
        parts=("comment", "role", "comment", "=Hello", "comment", "= far", *STREAM[3:]),
    ),
    stream(
        "pings", "maximhq/bifrost #5010", EVENTS, parts=("ping", "role", "ping", "=Hello", "= far", "ping", *STREAM[3:])
    ),
    stream("ids and waits", SSE, EVENTS, edit=lambda data: data.replace(b"data: {", b"id: 7\nretry: 10\ndata: {")),
    stream("events without data", SSE, EVENTS, parts=("role", b"event: x\n\n", b"data:\n\n", *STREAM[1:])),
    stream("a byte order mark", "openai/openai-python #3819", EVENTS, edit=lambda data: codecs.BOM_UTF8 + data),
    stream("CR", SSE, EVENTS, edit=lambda data: data.replace(b"\n", b"\r")),
    stream("CR and LF", "openai/openai-python #1230", EVENTS, edit=lambda data: data.replace(b"\n", b"\r\n")),
    stream("no space behind the colon", SSE, EVENTS, edit=lambda data: data.replace(b"data: ", b"data:")),
    stream("data in two lines", SSE, EVENTS, edit=lambda data: data.replace(b'", "model": ', b'",\ndata: "model": ')),
    stream("cut behind every byte", "api7/aisix #111", cut=1),
    stream("cut behind every seventh byte", "api7/aisix #111", cut=7),
    stream(
        "a character cut in two", "api7/aisix #111", parts=("role", "=Zürich 🏔", *STREAM[3:]), cut=3, text="Zürich 🏔"
    ),
    stream(
        "an emoji in two events",
        "elie222/rakazo #416",
        CHAT | MESSAGES,
        parts=("role", "=Hello", "=\ud83d", "=\ude00", *STREAM[3:]),
        text="Hello😀",
        usage=None,
    ),
    stream(
        "half an emoji",
        "elizaOS/eliza #30904",
        CHAT | MESSAGES,
        parts=(*BEGUN, "=\ud83d", *STREAM[3:]),
        text="Hello far\ud83d",
        usage=None,
    ),
    whole(
        "half an emoji in a document",
        "elizaOS/eliza #30904",
        CHAT | MESSAGES,
        parts=(*BEGUN, "=\ud83d"),
        text="Hello far\ud83d",
        usage=None,
    ),
    stream(
        "bytes that aren't UTF-8",
        SSE,
        CHAT,
        edit=lambda data: data.replace(b"Hello", b"Hel\xfflo"),
        text="Hel\ufffdlo far",
        without=frozenset({"pool"}),
    ),
    whole(
        "a document that isn't UTF-8",
        SSE,
        CHAT,
        edit=lambda data: data.replace(b"Hello", b"Hel\xfflo"),
        text="Hel\ufffdlo far",
        without=frozenset({"pool"}),
    ),
    stream(
        "a long line",
        "openai/openai-python #1230",
        EVENTS,
        parts=("role", "=" + "Hello " * 40_000, *STREAM[3:]),
        text="Hello " * 40_000,
        usage=None,
    ),
    Quirk(
        "infinite log probabilities",
        "sgl-project/sglang #2955",
        CHAT,
        edit=lambda data: data.replace(
            b'"finish_reason"', b'"logprobs": {"content": [{"logprob": -Infinity}]}, "finish_reason"'
        ),
    ),
    stream("labelled as JSON", "microsoft/foundry-dev-tools #195", EVENTS, content_type="application/json"),
    stream("labelled as text", "Wei-Shaw/sub2api #2826", EVENTS, content_type="text/plain; charset=utf-8"),
    stream("without a label", "nearai/private-ml-sdk #20", EVENTS, content_type=""),
    stream("labelled in capitals", HTTP, EVENTS, content_type="Text/Event-Stream;charset=UTF-8"),
    whole("a document labelled as a stream", "decolua/9router #3301", EVENTS, content_type="text/event-stream"),
    whole("a document labelled as text", "diegosouzapw/OmniRoute #6740", content_type="text/plain"),
    whole(
        "a document with the mark of a stream",
        "decolua/9router #3492",
        CHAT,
        edit=lambda data: data + b"\n\ndata: [DONE]\n\n",
    ),
    whole("white space around a document", "RFC 8259, section 2", edit=lambda data: b" \r\n" + data + b"\n"),
    whole("a document with a byte order mark", "RFC 8259, section 8.1", edit=lambda data: codecs.BOM_UTF8 + data),
    Quirk("gzip", HTTP, EVENTS, edit=gzip.compress, headers=(("content-encoding", "gzip"),)),
    Quirk(
        "an encoding that wasn't asked for and can't be read",
        HTTP,
        EVENTS,
        body=b"\x8b\x0b\x80{}\x03",
        headers=(("content-encoding", "br"),),
        fails=502,
        without=POOL,
    ),
    Quirk("1xx before the answer", HTTP, before=b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    Quirk("trailers", HTTP, trailers=b"x-checksum: 1\r\n"),
)


def _pause(name: str, value: str, source: str = HTTP) -> Quirk:
    """A status 429 that asks for a pause."""
    headers = (("retry-after", value),)
    return whole(name, source, body=_json(error={"message": "slow down"}), status=429, headers=headers, fails=429)


PAUSES: Final = (
    _pause("a pause of seconds", "1"),
    _pause("a pause until a date", "Wed, 21 Oct 2015 07:28:00 GMT"),
    _pause("a pause of zero", "0"),
    _pause("a negative pause", "-5"),
    _pause("a pause of years", "99999999999", "urllib3/urllib3 #3743"),
    _pause("a pause in words", "soon"),
    _refused(
        "no credit, as Anthropic says it",
        "router-for-me/CLIProxyAPI #3859",
        MESSAGES,
        400,
        _json(type="error", error={"type": "invalid_request_error", "message": _NO_CREDIT}),
        fails=502,
        code="provider_quota",
        without=POOL,
    ),
    _refused(
        "no quota, as OpenAI says it",
        "diegosouzapw/OmniRoute #1767",
        CHAT | RESPONSES,
        429,
        _json(
            error={"message": "You exceeded your quota.", "type": "insufficient_quota", "code": "insufficient_quota"}
        ),
        fails=502,
        code="provider_quota",
        without=POOL,
    ),
    _pause("a pause with its unit", "1m30s", "CortexLM/cortex-code #407"),
    _pause("a pause as Unix time", "1767225600", "BaseIntelligence/bounty-challenge #10752"),
)

QUIRKS: Final = (*ERRORS, *STATUSES, *MEANINGS, *ENDS, *USAGE, *DELTAS, *CALLS, *FRAMING, *PAUSES)
