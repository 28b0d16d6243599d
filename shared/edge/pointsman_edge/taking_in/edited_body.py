"""A request's body with a decision's edits."""

from collections.abc import Sequence

import orjson

from pointsman_apis.forms import edit_form, is_form
from pointsman_contracts.journey import BodyEdit
from pointsman_core.body_edit import edit_fields


def edited_body(body: bytes, edits: Sequence[BodyEdit], model: str | None) -> bytes:
    """Apply the decision's edits, and `model` when a fallback serves another one. Without any, the very bytes. A form
    gets new values for text members that it has; where there is no body, nothing is edited."""
    if not body or (not edits and model is None):
        return body
    if is_form(body):
        values = {edit.field: edit.value for edit in edits if isinstance(edit.value, str)}
        return edit_form(body, values if model is None else values | {"model": model})
    changes: dict[str, bytes | None] = {edit.field: None if edit.remove else orjson.dumps(edit.value) for edit in edits}
    if model is not None:
        changes["model"] = orjson.dumps(model)
    return edit_fields(body, changes)
