"""The extension point of a profile's request processors: they run in the services that choose profile and model, and
cost no message. Of the request they see its facts; its body has stayed at the edge."""

from abc import abstractmethod
from typing import Final, TypeVar, cast

import msgspec
from pydantic import JsonValue

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Journey, JourneyChanges, RequestFacts, Target
from pointsman_contracts.message import NO_BYTES
from pointsman_core.config import Config
from pointsman_core.plugins import Key, PluginError
from pointsman_plugins.plugin import ParamsT_co, Plugin

T = TypeVar("T")

_MODEL: Final = "model"


class RoutedRequest(msgspec.Struct, eq=False):
    """A request on its way through its profile, and the edits of the processors so far."""

    journey: Journey
    """As the stage before has left it; use the properties and methods for what processors may change."""
    declared: frozenset[str]
    """Names of the attributes that the running processor declares."""
    note: str | None = None
    """The note of the running processor; set it with `say`."""
    _headers: dict[str, HeaderEdit] | None = None
    _fields: dict[str, BodyEdit] | None = None
    _answer_headers: dict[str, HeaderEdit] | None = None
    _attributes: dict[str, JsonValue] | None = None

    @property
    def facts(self) -> RequestFacts:
        """The facts of the request. Its attributes are those of before the processors; use `read`."""
        return self.journey.request

    @property
    def profile(self) -> str:
        """The profile that was chosen."""
        return self.journey.profile or ""

    @property
    def target(self) -> Target | None:
        """The model that was chosen; None before."""
        return self.journey.target

    def read(self, key: Key[T]) -> T | None:
        """The attribute that a processor before has produced, here or in preprocessing."""
        found = self._attributes if self._attributes is not None else self.journey.request.attributes
        return found.get(key.name)  # pyright: ignore[reportReturnType] - `write` takes values of the key's type only

    def write(self, key: Key[T], value: T) -> None:
        """Produce an attribute for later processors and stages. It must be JSON. Raises PluginError for one that the
        processor doesn't declare in `produces`."""
        if key.name not in self.declared:
            raise PluginError(f"the attribute {key.name!r} isn't declared; add its key to `produces`")
        if self._attributes is None:
            self._attributes = dict(self.journey.request.attributes)
        self._attributes[key.name] = cast("JsonValue", value)

    def header(self, name: str) -> str | None:
        """A header of the request as the engine gets it, in any case; None where it is absent, or a credential."""
        name = name.lower()
        edit = self._header_edits().get(name)
        return self.facts.headers.get(name) if edit is None else edit.value

    def set_header(self, name: str, value: str | None) -> None:
        """Set a header that the engine gets; None removes it."""
        name = name.lower()
        self._headers = self._header_edits()
        self._headers[name] = HeaderEdit(name=name, value=value)

    def set_answer_header(self, name: str, value: str) -> None:
        """Set a header of the client's response, for errors too."""
        name = name.lower()
        if self._answer_headers is None:
            self._answer_headers = {edit.name: edit for edit in self.journey.answer_headers}
        self._answer_headers[name] = HeaderEdit(name=name, value=value)

    def field(self, name: str) -> JsonValue:
        """A top-level field of the body: a number, a truth value or a short text, as the engine gets it. None for
        any other, and for one that is absent."""
        edit = self._field_edits().get(name)
        return self.facts.fields.get(name) if edit is None else edit.value

    def set_field(self, name: str, value: JsonValue) -> None:
        """Set a top-level field of the body that the engine gets. Raises PluginError for `model`."""
        self._edit_field(BodyEdit(field=name, value=value))

    def remove_field(self, name: str) -> None:
        """Remove a top-level field. Raises PluginError for `model`."""
        self._edit_field(BodyEdit(field=name, remove=True))

    def say(self, note: str) -> None:
        """Why the running processor does so: for the decision's trail, without prompt text or credentials."""
        self.note = note

    def changes(self) -> JourneyChanges:
        """The changes that the processors made."""
        changes: JourneyChanges = {}
        facts = self.facts
        if self._attributes is not None:
            facts = facts.changed(attributes=self._attributes)
        if self._fields is not None:
            changes["body"] = tuple(self._fields.values())
            if facts.fingerprint:
                # The answers of another body aren't this one's.
                facts = facts.changed(fingerprint=NO_BYTES)
        if facts is not self.facts:
            changes["request"] = facts
        if self._headers is not None:
            changes["headers"] = tuple(self._headers.values())
        if self._answer_headers is not None:
            changes["answer_headers"] = tuple(self._answer_headers.values())
        return changes

    def _header_edits(self) -> dict[str, HeaderEdit]:
        return {edit.name: edit for edit in self.journey.headers} if self._headers is None else self._headers

    def _field_edits(self) -> dict[str, BodyEdit]:
        return {edit.field: edit for edit in self.journey.body} if self._fields is None else self._fields

    def _edit_field(self, edit: BodyEdit) -> None:
        if edit.field == _MODEL:
            raise PluginError("the model is chosen by a rewrite or a model-selector; a processor can't set it")
        self._fields = self._field_edits()
        self._fields[edit.field] = edit


class ProfileProcessor(Plugin[ParamsT_co]):
    """Runs for the requests of its profile, before or after a model is chosen."""

    group = "pointsman.profiles.request_processors"
    stability = "alpha"

    def check_config(self, config: Config) -> None:
        """Check the parameters against the whole configuration. Raises PluginError; called once."""
        del config

    @abstractmethod
    def process_request(self, request: RoutedRequest) -> None:
        """Read the request's facts, produce attributes, edit headers and fields. Raises Refusal to end the request."""
