"""The base of every section of the configuration file and how its errors read."""

from collections.abc import Mapping
from typing import NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pointsman_core.plugins import PluginError, Spec, unknown
from pointsman_core.wording import wrongs


class FromTable(NamedTuple):
    """Marks a text whose values stand in a table of another package; the service that uses it refuses others."""

    table: str
    """Its name in the configuration reference's generator."""


class Section(BaseModel):
    """Strict: an unknown key is an error that names the known ones. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _name_known_keys(cls, value: object) -> object:
        if isinstance(value, Mapping) and cls.model_config.get("extra") == "forbid":
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in cast("Mapping[object, object]", value):
                if key not in known:
                    raise ValueError(unknown("key", str(key), known))
        return cast("object", value)


class PluginUse(BaseModel):
    """A plugin instance in a list: `use` names its type, `name` the instance (default: the type), the rest are its
    parameters. A bare text means a type without parameters."""

    model_config = ConfigDict(frozen=True, extra="allow")

    use: str
    """Type of the plugin."""
    name: str | None = None
    """Name of this instance, for other keys, errors and metrics; default: the type."""

    @model_validator(mode="before")
    @classmethod
    def _accept_a_bare_name(cls, value: object) -> object:
        return {"use": value} if isinstance(value, str) else value

    @property
    def spec(self) -> Spec:
        """As a registry takes it."""
        return Spec(self.use, self.name or self.use, self.model_extra or {})


class ScorerUse(PluginUse):
    """A scorer in a list, with its weight."""

    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)


def expanded(value: object, key: str) -> object:
    """A section with `filters`, `scorers`, `picker` or `joint` at its own level, which stand for the one entry
    `default` of `key`. Raises ValueError when it has both."""
    if not isinstance(value, dict):
        return value
    document = dict(cast("dict[str, object]", value))
    short = {name: document.pop(name) for name in ("filters", "scorers", "picker", "joint") if name in document}
    if short:
        if key in document:
            raise ValueError(f"write either `{key}` or {', '.join(f'`{name}`' for name in short)}, not both")
        document[key] = {"default": short}
    return document


Problem = tuple[str, str]
"""A dotted path, empty for the document as a whole, and the problem at that place."""


class ConfigError(ValueError):
    """The configuration is refused."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{path}: {text}" if path else text for path, text in problems))

    @classmethod
    def from_validation(cls, error: ValidationError) -> "ConfigError":
        """The problems of a validation, worded for the author of the file."""
        problems: list[Problem] = []
        for wrong in wrongs(error):
            where = [str(step) for step in wrong.path]
            if isinstance(wrong.cause, ConfigError):  # a check across keys names the places of its problems
                problems += [(".".join((*where, path) if path else where), text) for path, text in wrong.cause.problems]
                continue
            problems.append((".".join(where), wrong.text))
        return cls(problems)

    @classmethod
    def from_section(cls, section: str, error: PluginError) -> "ConfigError":
        """The problems of the plugins of this section."""
        return cls([(".".join((section, *(str(step) for step in one.path))), str(one)) for one in error.list_errors()])
