"""Headers from facts of the request: `request-id`, `session-id`, `model-to-header`, `field-to-header`."""

import hashlib
import json
from typing import Final, cast

import msgspec
from pydantic import Field, JsonValue, field_validator

from pointsman_core.config import Config
from pointsman_core.header_names import HEADER_NAME, REQUEST_ID, SettableHeader, settable
from pointsman_core.plugins import PluginError
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import Incoming, RequestProcessor


class RequestIdParams(Params):
    """The header to set."""

    header: str = Field(default="X-Request-Id", pattern=HEADER_NAME)
    """Every request that an edge forwards has `X-Request-Id`, with or without this processor."""

    @field_validator("header")
    @classmethod
    def _can_be_set(cls, value: str) -> str:
        return value if value.lower() == REQUEST_ID else settable(value)


class RequestId(RequestProcessor[RequestIdParams]):
    """Sets the header to the request's id."""

    type_name = "request-id"

    def setup(self) -> None:
        header = self.params.header
        self._header = None if header.lower() == REQUEST_ID else header

    def process(self, incoming: Incoming) -> None:
        if self._header is not None:
            incoming.set_header(self._header, incoming.envelope.request_id)


SESSION_ID: Final = "x-session-id"


class SessionId(RequestProcessor):
    """Begins a session for a request that names none: the answer has its id in `x-session-id`, which the client sends
    with its next request. Put it before what reads sessions."""

    type_name = "session-id"

    def process(self, incoming: Incoming) -> None:
        session = incoming.headers.session
        if session is None:
            envelope = incoming.envelope
            # A request that its edge sends again begins the same session.
            name = f"{envelope.edge}/{envelope.request_id}/{envelope.received_ms}"
            session = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
            incoming.headers = msgspec.structs.replace(incoming.headers, session=session)
            incoming.set_header(SESSION_ID, session)
        incoming.set_answer_header(SESSION_ID, session)


class ModelToHeaderParams(Params):
    """Names of the headers."""

    header: SettableHeader = "X-Gateway-Model-Name"
    base_header: SettableHeader = "X-Gateway-Base-Model-Name"
    bases: dict[str, str] = Field(default_factory=dict[str, str])
    """Adapter → base model, for pools that list more than one base model."""


class ModelToHeader(RequestProcessor[ModelToHeaderParams]):
    """Sets both headers; the base model is empty when unknown."""

    type_name = "model-to-header"

    def setup(self) -> None:
        self._base: dict[str, str] = {}

    def bind(self, config: Config) -> None:
        base: dict[str, str] = {}
        for pool in config.pools.values():
            bases = [model for model in pool.models if model not in pool.loras]
            base |= {model: model for model in bases}
            for lora in pool.loras:
                if lora in self.params.bases:
                    base[lora] = self.params.bases[lora]
                elif len(bases) == 1:
                    base[lora] = bases[0]
                elif bases:
                    raise PluginError(
                        f"adapter {lora!r} may belong to {', '.join(bases)}; say which in `bases`", ("bases",)
                    )
        for name, model in config.models.items():
            base[name] = base.get(model.served_as or name, model.served_as or name)
        self._base = base

    def process(self, incoming: Incoming) -> None:
        model = incoming.model
        incoming.set_header(self.params.header, model, tells="model")
        incoming.set_header(self.params.base_header, self._base.get(model, ""), tells="base_model")


LONGEST_VALUE: Final = 1024
_ROUNDED: Final = 2.0**63
"""The parser of bodies reads larger whole numbers as floats."""


class _WholeNumber(str):
    """The digits of a whole number."""

    __slots__ = ()


class FieldToHeaderParams(Params):
    """Source and target."""

    field: str = Field(min_length=1)
    """Top-level field, or a path into objects, e.g. `metadata.tier`."""
    header: SettableHeader


class FieldToHeader(RequestProcessor[FieldToHeaderParams]):
    """Sets the header to the text, number or boolean; removes the client's header when the field has none, or a blank
    text. Whole numbers keep all their digits."""

    type_name = "field-to-header"

    def setup(self) -> None:
        self._top, *self._below = self.params.field.split(".")

    def process(self, incoming: Incoming) -> None:
        value = incoming.field(self._top)
        for step in self._below:
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, float) and abs(value) >= _ROUNDED:
            value = _digits(bytes(incoming.body.raw), self.params.field) or value
        text = _as_header(value)
        if text is None:
            incoming.remove_header(self.params.header)
        else:
            incoming.set_header(self.params.header, text)


def _as_header(value: JsonValue) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        text = str(value)
        return text if text.isprintable() and text.strip() and len(text) <= LONGEST_VALUE else None
    return None


def _digits(body: bytes, path: str) -> str | None:
    """The digits of a whole number as the client wrote it; None where the body has none there."""
    value: object = json.loads(body, parse_int=_WholeNumber)
    for step in path.split("."):
        value = cast("dict[str, object]", value).get(step) if isinstance(value, dict) else None
    return value if isinstance(value, _WholeNumber) else None
