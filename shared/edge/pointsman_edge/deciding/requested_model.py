"""The model that a body asks for. Read by the edge only when it decides alone; otherwise the preprocessor does it."""

from pointsman_apis.paths import route_of
from pointsman_apis.requests import decode, model_of, parse, written
from pointsman_contracts.journey import PreprocessRequest
from pointsman_core.config import Config
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
    """The member `model`. Raises Refusal 400 for a body that no engine could take."""
    document = decode(body)
    written(document)
    model = document.get("model")
    if not isinstance(model, str) or not model.strip():
        raise Refusal(400, "`model` must be the name of a model.", code="invalid_model", param="model")
    return model
