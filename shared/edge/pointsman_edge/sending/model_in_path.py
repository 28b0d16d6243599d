"""The model's name in the path, for APIs whose bodies don't name it."""

from collections.abc import Sequence

from pointsman_apis.paths import with_model
from pointsman_contracts.journey import BodyEdit


def renamed_path(target: bytes, model: str) -> bytes:
    """Path and query for an engine that knows the model by this name."""
    path, mark, query = target.partition(b"?")
    return with_model(path.decode("ascii"), model).encode("ascii") + mark + query


def without_model(edits: Sequence[BodyEdit]) -> tuple[BodyEdit, ...]:
    """The changes of the body but for the model's name."""
    return tuple([edit for edit in edits if edit.field != "model"])
