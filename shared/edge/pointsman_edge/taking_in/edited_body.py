"""A request's body with a decision's edits."""

from collections.abc import Sequence

import orjson

from pointsman_contracts.journey import BodyEdit
from pointsman_core.body_edit import edit_fields


def edited_body(body: bytes, edits: Sequence[BodyEdit], model: str | None) -> bytes:
    """Apply the decision's edits, and `model` when a fallback serves another one. Without any, the very bytes."""
    if not edits and model is None:
        return body
    changes: dict[str, bytes | None] = {edit.field: None if edit.remove else orjson.dumps(edit.value) for edit in edits}
    if model is not None:
        changes["model"] = orjson.dumps(model)
    return edit_fields(body, changes)
