"""`field-to-header`: a field of the body in a header."""

from typing import Final

from pydantic import Field, JsonValue

from pointsman_core.header_names import SettableHeader
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import Incoming, RequestProcessor

LONGEST_VALUE: Final = 1024


class FieldToHeaderParams(Params):
    """From where to where."""

    field: str = Field(min_length=1)
    """Top-level field, or a path into objects, e.g. `metadata.tier`."""
    header: SettableHeader


class FieldToHeader(RequestProcessor[FieldToHeaderParams]):
    """Sets the header to the text, number or boolean; removes what the client sent there when the field has none."""

    type_name = "field-to-header"

    def setup(self) -> None:
        self._top, *self._below = self.params.field.split(".")

    def process(self, incoming: Incoming) -> None:
        value = incoming.field(self._top)
        for step in self._below:
            value = value.get(step) if isinstance(value, dict) else None
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
        return text if text.isprintable() and len(text) <= LONGEST_VALUE else None
    return None
