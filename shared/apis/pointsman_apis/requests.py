"""Reads a request's body: once, for everything that needs it."""

from dataclasses import dataclass
from typing import Final, cast

from pydantic import JsonValue

from pointsman_apis import PATHS
from pointsman_apis.api import Api, View
from pointsman_apis.decode import decode
from pointsman_apis.density import check_density
from pointsman_apis.depth import written
from pointsman_apis.fields import Document, check_fields, empty, missing
from pointsman_apis.paths import unknown_path
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
    api: Api
    view: View
    media: tuple[str, ...] = ()
    """What the content parts that aren't text need of a model, e.g. `vision`; one entry for each part."""

    @property
    def model(self) -> str:
        """The model that the client asks for."""
        return str(self.document["model"])


def parse(path: str, raw: bytes | memoryview, max_values: int = MAX_VALUES) -> StructuredBody:
    """Decode and check the body of a request to `path`. Raises Refusal 400 that names the member, 404 for an unknown
    path. How deep the prompt nests is checked when it is serialised."""
    api = PATHS.get(path)
    if api is None:
        raise unknown_path(path)
    check_density(raw, max_values)
    document = decode(raw)
    check_fields(document, api.fields)
    in_prompt = api.in_prompt
    for name, value in document.items():
        if (type(value) is dict or type(value) is list) and name not in in_prompt:
            written(value)
    _check_model(document.get("model"))
    media: list[str] = []
    return StructuredBody(raw, document, api, api.view(document, media), tuple(media))


def _check_model(model: JsonValue) -> None:
    if model is None:
        raise missing("model")
    name = cast("str", model)
    if not name or name.isspace():
        raise empty("model", "the name of a model")
    if len(name) > LONGEST_MODEL_NAME or not name.isprintable():
        raise Refusal(
            400,
            f"Invalid 'model': expected at most {LONGEST_MODEL_NAME} printable characters.",
            param="model",
            code="invalid_value",
        )
