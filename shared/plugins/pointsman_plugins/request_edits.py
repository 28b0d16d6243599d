"""`set-headers`, `set-fields`: edits of a profile's requests."""

from typing import Annotated, Final

from pydantic import Field, JsonValue, field_validator

from pointsman_core.header_names import SettableHeader
from pointsman_plugins.plugin import Params
from pointsman_plugins.routing import ProfileProcessor, RoutedRequest

_PLACES: Final = ("{model}", "{pool}", "{profile}", "{session}")
Scalar = bool | int | float | Annotated[str, Field(max_length=64)]


class SetHeadersParams(Params):
    set: dict[SettableHeader, str] = Field(default_factory=dict[SettableHeader, str])
    """Headers that the engine gets. `{model}`, `{pool}`, `{profile}` and `{session}` stand for the request's own, empty
    where there is none."""
    remove: tuple[SettableHeader, ...] = ()
    """Headers that the engine doesn't get."""
    answer: dict[SettableHeader, str] = Field(default_factory=dict[SettableHeader, str])
    """Headers of the client's response, errors included."""


class SetHeaders(ProfileProcessor[SetHeadersParams]):
    """Sets and removes headers."""

    type_name = "set-headers"

    def process_request(self, request: RoutedRequest) -> None:
        params = self.params
        for name in params.remove:
            request.set_header(name, None)
        for name, value in params.set.items():
            request.set_header(name, _filled(value, request))
        for name, value in params.answer.items():
            request.set_answer_header(name, _filled(value, request))


class SetFieldsParams(Params):
    set: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Top-level fields of the body that the engine gets, whatever the client sent."""
    default: dict[str, Scalar] = Field(default_factory=dict[str, Scalar])
    """Those that it gets where the client sent none: numbers, truth values and short texts."""
    remove: tuple[str, ...] = ()
    """Those that it doesn't get."""

    @field_validator("set", "default", "remove")
    @classmethod
    def _leave_the_model(cls, value: object) -> object:
        if isinstance(value, dict | tuple) and "model" in value:
            raise ValueError("the model is chosen by a rewrite or a model-selector; a processor can't set it")
        return value  # pyright: ignore[reportUnknownVariableType]


class SetFields(ProfileProcessor[SetFieldsParams]):
    """Sets and removes fields of the body, e.g. the sampling of a profile."""

    type_name = "set-fields"

    def process_request(self, request: RoutedRequest) -> None:
        params = self.params
        for name in params.remove:
            request.remove_field(name)
        for name, value in params.default.items():
            if request.field(name) is None:
                request.set_field(name, value)
        for name, value in params.set.items():
            request.set_field(name, value)


def _filled(value: str, request: RoutedRequest) -> str:
    if "{" not in value:
        return value
    target = request.target
    model, pool = ("", "") if target is None else (target.lora or target.model, target.pool or "")
    for place, own in zip(_PLACES, (model, pool, request.profile, request.facts.session or ""), strict=True):
        value = value.replace(place, own)
    return value
