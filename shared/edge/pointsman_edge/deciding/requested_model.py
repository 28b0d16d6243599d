"""The model that a body asks for. Read by the edge only when it decides alone; otherwise the preprocessor does it."""

from typing import cast

import orjson

from pointsman_apis.paths import route_of
from pointsman_apis.requests import model_of, parse
from pointsman_contracts.journey import PreprocessRequest
from pointsman_core.config import Config
from pointsman_core.duplicate_members import has_duplicate_member, sent_twice
from pointsman_core.refusal import Refusal


def asked_model(config: Config, request: PreprocessRequest, body: bytes) -> str:
    """The model that a request is for. Raises Refusal 400 for a body that no engine could take, 404 for an unknown
    pool."""
    route = route_of(request.path)
    if route is None or not route.api.passed:
        return requested_model(body)
    parsed = parse(request.path, body, content_type=request.headers.get("content-type", ""))
    return request.model or model_of(config, parsed)


def requested_model(body: bytes) -> str:
    """The field `model`. Raises Refusal 400 for a body that no engine could take."""
    try:
        document = cast("object", orjson.loads(body))
    except orjson.JSONDecodeError as error:
        # The text of the error has a position and no content.
        raise Refusal(400, f"The body isn't valid JSON: {error.msg}.", code="invalid_json") from None
    if not isinstance(document, dict):
        raise Refusal(400, "The body is not a JSON object.", code="invalid_body")
    members = cast("dict[str, object]", document)
    try:
        twice = has_duplicate_member(body, members)
    except orjson.JSONEncodeError:
        raise Refusal(400, "The body nests arrays and objects too deep.", code="body_too_complex") from None
    if twice:
        raise sent_twice(body)
    model = members.get("model")
    if not isinstance(model, str) or not model.strip():
        raise Refusal(400, "`model` must be the name of a model.", code="invalid_model", param="model")
    return model
