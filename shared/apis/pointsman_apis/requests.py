"""Reads a request's body: once, for everything that needs it."""

from dataclasses import dataclass
from typing import Final, cast

from pointsman_apis.api import Api, View
from pointsman_apis.decode import check_density, decode, written
from pointsman_apis.fields import Document, check_fields, empty, missing
from pointsman_apis.forms import read_form
from pointsman_apis.paths import Route, route_of, unknown_path
from pointsman_core.config import Config
from pointsman_core.refusal import Refusal

LONGEST_MODEL_NAME: Final = 256
"""Characters."""
MAX_VALUES: Final = 262144
"""JSON values in a body: a prompt of 262,143 token ids, or any text."""


@dataclass(slots=True)
class StructuredBody:
    """A client's body: the bytes, the decoded document with every member of it, and the view of its prompt."""

    raw: bytes | memoryview
    document: Document
    """Empty where there is no body; of a form its text members."""
    api: Api
    view: View
    model: str
    """The model that the client asks for; empty where the body names none."""
    media: tuple[str, ...] = ()
    """The features that content parts other than text need of a model, e.g. `vision`; one entry for each part."""
    pool: str | None = None
    """The pool that the path names."""


def parse(
    path: str, raw: bytes | memoryview, max_values: int = MAX_VALUES, *, content_type: str = ""
) -> StructuredBody:
    """Decode and check the body of a request to `path`. Raises Refusal 400 that names the member, 404 for an unknown
    path. How deep the prompt nests is checked when it is serialised. `content_type` is needed for forms alone."""
    route = route_of(path)
    if route is None:
        raise unknown_path(path)
    api = route.api
    if api.passed:
        return _passed(route, raw, max_values, content_type)
    check_density(raw, max_values)
    document = decode(raw)
    check_fields(document, api.fields)
    in_prompt = api.in_prompt
    for name, value in document.items():
        if (type(value) is dict or type(value) is list) and name not in in_prompt:
            written(value)
    model = document.get("model")
    if model is None:
        raise missing("model")
    _check_model(cast("str", model))
    media: list[str] = []
    return StructuredBody(raw, document, api, api.view(document, media), cast("str", model), tuple(media))


def model_of(config: Config, body: StructuredBody) -> str:
    """The model that a request is for: the one that its body names, or the first one of the pool that its path names,
    or of the only pool. Raises Refusal: 400 for a request without any of these, 404 for an unknown pool."""
    pools = config.pools
    if body.model:
        served = config.served(body.model) if body.pool is not None else None
        if served is not None and served.pool != body.pool:
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
        raise Refusal(404, "There is no pool of the name in the path.", code="unknown_pool")
    loras = pools[pool].loras
    for name in config.model_names():
        served = config.served(name)
        if served is not None and served.pool == pool and name not in loras:
            return name
    raise Refusal(
        400, "The configuration lists no model for the pool; name the model in the body.", param="model",
        code="missing_required_parameter",
    )  # fmt: skip


def _passed(route: Route, raw: bytes | memoryview, max_values: int, content_type: str) -> StructuredBody:
    api = route.api
    document: Document = {}
    if api.body == "json":
        check_density(raw, max_values)
        document = decode(raw)
        check_fields(document, api.fields)
        written(document)
    elif api.body == "form":
        form = read_form(bytes(raw), content_type)
        document = {field.name: field.value for field in form.fields}
        document["model"] = form.value("model")
        if (stream := form.value("stream")) is not None:
            document["stream"] = stream.lower() in ("true", "1")
    model = document.get("model")
    if model is None:
        model = ""
    else:
        _check_model(cast("str", model))
    return StructuredBody(raw, document, api, api.view(document, []), cast("str", model), pool=route.pool)


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
