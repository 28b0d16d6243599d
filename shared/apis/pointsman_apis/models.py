"""`/v1/models`: the models that requests may name, as OpenAI's API lists them."""

from collections.abc import Iterable, Sequence
from typing import Final

from pointsman_core.unknown_model import unknown_model

OWNER: Final = "pointsman"
MODELS: Final = "/v1/models"
"""Path of the list. One model is at `/v1/models/<name>`."""


def model_list(names: Iterable[str], created: int) -> dict[str, object]:
    """The document; `created` is in unix seconds."""
    return {"object": "list", "data": [_entry(name, created) for name in names]}


def model_entry(name: str, names: Sequence[str], created: int) -> dict[str, object]:
    """One model's document. Raises Refusal 404 that lists the known ones."""
    if name in names:
        return _entry(name, created)
    raise unknown_model(name, names)


def _entry(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": OWNER}
