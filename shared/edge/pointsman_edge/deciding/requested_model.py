"""The model that a body asks for. Read by the edge only when it decides alone; otherwise the preprocessor does it."""

from typing import cast

import orjson

from pointsman_core.duplicate_members import has_duplicate_member, sent_twice
from pointsman_core.refusal import Refusal


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
