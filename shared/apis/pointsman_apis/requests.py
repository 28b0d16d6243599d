"""Reads a request's body, once for everything that needs it: decodes it, and checks and names its parts."""

import re
from collections.abc import Sequence
from typing import Final, cast

import msgspec
import orjson
from pydantic import JsonValue

from pointsman_apis.api import Api, View
from pointsman_apis.fields import Document, FieldReader, empty, kind_of, missing
from pointsman_apis.forms import read_form
from pointsman_apis.grown_bodies import LEAST_BYTES, EarlierBody, Grown, GrownBodies, count_marks
from pointsman_apis.paths import Route, route_of, unknown_path
from pointsman_core.config import Config
from pointsman_core.json_members import has_duplicate_member, sent_twice
from pointsman_core.refusal import Refusal

DEEPEST: Final = 200
"""Levels of arrays and objects that always pass; a few more may. orjson reads 1,024 levels and writes 254."""
AROUND: Final = 8
"""Levels that a fingerprint or a provider's API may add around a part of the body."""
LOOK_ABOVE: Final = 131072
"""Bytes. Only larger bodies have their values counted: the decoder takes about 40 ns for a number and 100 ns for an
array or object, and a body of 4 MB can hold two million values."""
CONTAINER_SHARE: Final = 4
"""At most one value in 4 may be an array or object."""

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_ESCAPED_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NOT_NUMBERS: Final = (b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf")
LONGEST_MODEL_NAME: Final = 256
"""Characters."""
MAX_VALUES: Final = 262144
"""JSON values in a body: a prompt of 262,143 token ids, or any text."""


_ASKING: Final = frozenset(
    (
        *("tools", "functions", "response_format", "text", "guided_json", "structured_outputs"),
        *("reasoning_effort", "reasoning", "thinking", "logprobs"),
    )
)
"""Members that may need a feature of a model."""
_FORMS: Final = FieldReader({}, identifiers=False)


class StructuredBody(msgspec.Struct, gc=False):
    """A client's body: the bytes, the decoded document with every member of it, and the view of its prompt."""

    raw: bytes | memoryview
    document: Document
    """Empty where there is no body; of a form its text members."""
    api: Api
    view: View
    model: str
    """The model that the client asks for; empty where the body names none."""
    readable: dict[str, JsonValue]
    """Numbers, booleans and short identifiers of the top level, which rules may read. Never prompt text."""
    max_output_tokens: int | None
    """The client's limit on each answer; None when it set none, 0 for an API that generates no text."""
    media: tuple[str, ...] = ()
    """The features that content parts other than text need of a model, e.g. `vision`; one entry for each part."""
    features: tuple[str, ...] = ()
    """The features that the request needs of a model: `tools`, `json`, `reasoning`, `logprobs`, or those of `MEDIA`."""
    pool: str | None = None
    """The pool that the path names."""
    may_name_session: bool = False
    """Whether a member may name a session."""
    gives_hints: bool = False
    """Whether it has a member for hints about the request."""
    kept: EarlierBody | None = None
    """The body as it is kept for a later one of its conversation; its prompt is known."""


def parse(
    path: str,
    raw: bytes | memoryview,
    max_values: int = MAX_VALUES,
    *,
    content_type: str = "",
    bodies: GrownBodies | None = None,
) -> StructuredBody:
    """Decode and check the body of a request to `path`. Raises Refusal 400 that names the member, 404 for an unknown
    path. How deep the prompt nests is checked when it is serialised. `content_type` is needed for forms alone.
    `bodies`: earlier ones that this one may go on with."""
    route = route_of(path)
    if route is None:
        raise unknown_path(path)
    api = route.api
    if api.passed:
        return _passed(route, raw, max_values, content_type)
    text: bytes | None = None
    starts: dict[int, int] = {}
    if bodies is not None and len(raw) >= LEAST_BYTES and api.template is not None and api.conversation != "prompt":
        text = bytes(raw)
        grown = bodies.find_grown(api.name, text, starts)
        body = None if grown is None else _read_grown(api, text, grown, bodies, max_values)
        if body is not None:
            return body
    document = decode(raw, max_values)
    body = _read(api, raw, document)
    if text is not None and bodies is not None and not body.media and isinstance(document.get(api.conversation), list):
        member, head = api.conversation, body.view.head
        body.kept = bodies.keep_body(api.name, text, document, member=member, head=head, starts=starts)
    return body


def _read(api: Api, raw: bytes | memoryview, document: Document, view: View | None = None) -> StructuredBody:
    """`view`: as `Api.view` makes it of the document, where the caller knows it."""
    readable, shape = api.reader.read(document)
    for name in shape.nested:
        written(document[name])
    model: str = document.get("model")  # pyright: ignore[reportAssignmentType] - as checked here and by the reader
    if "model" not in readable:  # an identifier, which needs no further check
        if document.get("model") is None:
            raise missing("model")
        _check_model(model)
    media: list[str] = []
    if view is None:
        view = api.view(document, media)
    features = () if _ASKING.isdisjoint(document) and not media else _features(document, media)
    limit = shape.limit
    most: int | None = None if api.generates else 0
    if limit is not None:
        most = document[limit]  # pyright: ignore[reportAssignmentType] - as the reader checked
    return StructuredBody(
        raw=raw,
        document=document,
        api=api,
        view=view,
        model=model,
        readable=readable,
        max_output_tokens=most,
        media=tuple(media),
        features=features,
        may_name_session=shape.may_name_session,
        gives_hints=shape.gives_hints,
    )


def _read_grown(api: Api, text: bytes, grown: Grown, bodies: GrownBodies, max_values: int) -> StructuredBody | None:
    """The body; only messages that the earlier one doesn't have are read. None where the whole body must be read: the
    new messages have media, or something in them is wrong or isn't as orjson writes it."""
    between, earlier = grown.between, grown.earlier
    if b"\\u0000" in between or grown.count_marks() > max_values // CONTAINER_SHARE:
        return None
    try:
        fresh: JsonValue = orjson.loads(between)
        if not isinstance(fresh, list) or not fresh or written(fresh)[AROUND:-AROUND] != between:
            return None
        media: list[str] = []
        read = api.view({**earlier.document, api.conversation: fresh}, media)
        if media:
            return None
        known = cast("list[Document]", earlier.document[api.conversation])
        messages = [*known[: grown.kept], *cast("list[Document]", fresh)]
        document: Document = {**earlier.document, api.conversation: cast("list[JsonValue]", messages)}
        view = View(messages=messages, head=read.head, answers=read.answers)
        body = _read(api, text, document, view)
    except (orjson.JSONDecodeError, Refusal):  # the whole body's refusal names the place
        return None
    body.kept = bodies.keep_grown(text, grown, document, [orjson.dumps(item) for item in fresh])
    return body


def model_of(config: Config, body: StructuredBody) -> str:
    """The model that a request is for: the one that its body names, or the first one of the pool that its path names,
    or of the only pool. Raises Refusal: 400 for a request without any of these, 404 for an unknown pool."""
    pools = config.pools
    if body.model:
        target = config.find_target(body.model) if body.pool is not None else None
        if target is not None and target.pool != body.pool:
            raise Refusal(400, "The model isn't in the pool that the path names.", param="model", code="invalid_value")
        return body.model
    pool = next(iter(pools)) if body.pool is None and len(pools) == 1 else body.pool
    if pool is None:
        raise Refusal(
            400,
            f"Name the model in the body, or the pool in the path: /pools/<pool>{body.api.path}.",
            param="model",
            code="missing_required_parameter",
        )
    if pool not in pools:
        raise Refusal(404, "The pool that the path names doesn't exist.", code="unknown_pool")
    loras = pools[pool].loras
    for name in config.model_names():
        target = config.find_target(name)
        if target is not None and target.pool == pool and name not in loras:
            return name
    raise Refusal(
        400, "The configuration lists no model for the pool; name the model in the body.", param="model",
        code="missing_required_parameter",
    )  # fmt: skip


def too_deep() -> Refusal:
    """The refusal of a body that nests too deep."""
    return Refusal(
        400,
        f"The body nests arrays and objects too deeply; at most {DEEPEST} levels are accepted.",
        code="body_too_complex",
    )


def written(part: object) -> bytes:
    """A part of a body as JSON, inside `AROUND` levels of arrays. Raises Refusal 400 for one that nests too deep."""
    try:
        return orjson.dumps([[[[[[[[part]]]]]]]])
    except orjson.JSONEncodeError as error:
        raise too_deep() from error


def check_density(raw: bytes | memoryview, max_values: int) -> None:
    """Refuse a body with more than `max_values` values or a quarter as many arrays and objects. Raises Refusal 400."""
    text = bytes(raw)
    most_containers = max_values // CONTAINER_SHARE
    # Commas and brackets within texts count here, so that this can only be too high.
    if count_marks(text) <= most_containers:
        return
    commas = containers = position = 0
    for string in _STRING.finditer(text):
        between = text[position : string.start()]
        commas += between.count(b",")
        containers += between.count(b"[") + between.count(b"{")
        position = string.end()
        if commas >= max_values or containers > most_containers:
            break
    else:
        rest = text[position:]
        commas += rest.count(b",")
        containers += rest.count(b"[") + rest.count(b"{")
    if commas >= max_values or containers > most_containers:
        raise Refusal(
            400,
            f"The body holds more than {max_values:,} values or {most_containers:,} arrays and objects; "
            "send less in one request, and long prompts as text.",
            code="body_too_complex",
        )


def decode(raw: bytes | memoryview, max_values: int | None = None) -> Document:
    """Parse the body of a request; `max_values` as `check_density`, without a bound by default. Raises Refusal 400.

    Strict JSON (RFC 8259): UTF-8, no NaN or Infinity, no lone surrogates; how deep it nests is checked when it is
    written again. The NUL character is refused even when escaped, because tokenizers and stores disagree about it. A
    member that occurs twice is refused, because the engine may read the one that wasn't checked here.
    """
    # Python compares and searches a view byte by byte, which takes twenty times as long as copying it.
    text = bytes(raw)
    if max_values is not None and len(text) > LOOK_ABOVE:
        check_density(text, max_values)
    try:
        document: JsonValue = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _not_json(text, error.msg, error.lineno, error.colno, error.pos) from None
    if not isinstance(document, dict):
        raise Refusal(400, f"The body must be a JSON object; got {kind_of(document)}.", code="invalid_json")
    # The expression only runs for a body that has the characters somewhere. A search for all six stops at each
    # backslash, which takes four times as long.
    if b"u0000" in text and _ESCAPED_NUL.search(text) is not None:
        raise Refusal(400, "The body contains the NUL character (\\u0000); remove it.", code="invalid_json")
    try:
        twice = has_duplicate_member(text, document)
    except orjson.JSONEncodeError:
        raise too_deep() from None
    if twice:
        raise sent_twice(text)
    return document


def _not_json(text: bytes, problem: str, line: int, column: int, position: int) -> Refusal:
    if not text:
        return Refusal(400, "The body is empty; a JSON object is expected.", code="invalid_json")
    hint = ""
    if "unexpected end" in problem:
        hint = " The body seems to be cut off."
    elif "depth limit" in problem:
        return too_deep()
    elif "UTF-8" in problem:
        return Refusal(400, f"The body is not valid UTF-8 JSON: {problem}.", code="invalid_json")
    elif text[position : position + 9].lstrip().startswith(_NOT_NUMBERS):
        hint = " NaN and Infinity are not JSON; use null or a number."
    return Refusal(
        400, f"The body is not valid JSON: {problem} at line {line}, column {column}.{hint}", code="invalid_json"
    )


def _passed(route: Route, raw: bytes | memoryview, max_values: int, content_type: str) -> StructuredBody:
    api = route.api
    document: Document = {}
    readable: dict[str, JsonValue] = {}
    if api.body == "json":
        document = decode(raw, max_values)
        readable, _ = api.reader.read(document)
        written(document)
    elif api.body == "form":
        form = read_form(bytes(raw), content_type)
        document = {field.name: field.value for field in form.fields}
        document["model"] = form.read_member("model")
        if (stream := form.read_member("stream")) is not None:
            document["stream"] = stream.lower() in ("true", "1")
        readable, _ = _FORMS.read(document)
    if api.streams:
        readable["stream"] = document["stream"] = True
    model = document.get("model") if route.model is None else route.model
    if model is None:
        model = ""
    else:
        _check_model(cast("str", model))
    view = api.view(document, [])
    most = None if api.generates else 0  # no such API has a limit of its own
    features = _features(document, ())
    return StructuredBody(
        raw=raw,
        document=document,
        api=api,
        view=view,
        model=cast("str", model),
        readable=readable,
        max_output_tokens=most,
        features=features,
        pool=route.pool,
    )


def _features(document: Document, media: Sequence[str]) -> tuple[str, ...]:
    found = list(dict.fromkeys(media))
    get = document.get
    if get("tools") or get("functions"):
        found.append("tools")
    text = get("text")
    wanted = text.get("format") if isinstance(text, dict) else get("response_format")
    if (
        (isinstance(wanted, dict) and wanted.get("type") in ("json_object", "json_schema"))
        or "guided_json" in document
        or "structured_outputs" in document
    ):
        found.append("json")
    if get("reasoning_effort") not in (None, "none") or get("reasoning") or get("thinking"):
        found.append("reasoning")
    if get("logprobs"):
        found.append("logprobs")
    return tuple(found)


def _check_model(name: str) -> None:
    if not name or name.isspace():
        raise empty("model", "the name of a model")
    if len(name) > LONGEST_MODEL_NAME or not name.isprintable():
        raise Refusal(
            400,
            f"Invalid 'model': expected at most {LONGEST_MODEL_NAME} printable characters.",
            param="model",
            code="invalid_value",
        )
