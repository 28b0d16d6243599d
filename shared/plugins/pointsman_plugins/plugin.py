"""The base class of every plugin, and its parameters.

An extension point derives from `Plugin` and adds the method that it is about. A plugin derives from an extension point,
with its parameters' class in brackets:

    class Warmest(Scorer[WarmestParams]):
        type_name = "warmest"

State has three lifetimes: a request's is in attributes (`Key`), an instance's in its own fields, and an endpoint's in
the tables of the service.
"""

from abc import ABC
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Generic, Literal, NamedTuple, cast, get_args

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar, get_original_bases

from pointsman_core.plugins import Key, PluginError

Stability = Literal["alpha", "beta", "stable"]
"""`alpha` may change with any version, `beta` with a minor version, `stable` with a major version; the changelog says
what to do."""


class Params(BaseModel):
    """Parameters of a plugin. Unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)


class _ReferenceMark(NamedTuple):
    what: str = "plugin"


Reference = Annotated[str, _ReferenceMark()]
"""A parameter of this type names another plugin instance, which is built first. `Plugin.refer` returns it."""


ParamsT_co = TypeVar("ParamsT_co", bound=Params, default=Params, covariant=True)
OtherT = TypeVar("OtherT", bound="Plugin")


class Plugin(ABC, Generic[ParamsT_co]):
    """Base of every extension point. A plugin sets `type_name`, and names its parameters' class in brackets if it has
    parameters."""

    group: ClassVar[str] = ""
    """The entry-point group in which distributions offer plugins of this extension point."""
    stability: ClassVar[Stability] = "alpha"
    """The stability of the extension point: when its methods and values may change."""
    type_name: ClassVar[str] = ""
    """As written in configuration; unique within its extension point."""
    params_type: ClassVar[type[Params]] = Params
    """The class in brackets. A plugin that extends a whole plugin, with more parameters, sets it."""
    consumes: tuple[Key[object], ...] = ()
    """Attributes that must have been produced before this plugin runs."""
    produces: tuple[Key[object], ...] = ()
    reads_headers: tuple[str, ...] = ()
    """Names of the request headers that this plugin reads, in lower case: a flight log has no others."""
    called_by_another: bool = False
    """Another plugin of its list refers to it: it runs where that one calls it, and not by itself."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in get_original_bases(cls):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Params):
                    cls.params_type = argument

    def __init__(self, name: str, params: ParamsT_co, others: "Mapping[str, Plugin]" = MappingProxyType({})) -> None:
        """`others` holds the instances that parameters of type `Reference` name."""
        self.name: Final = name
        self.params: Final = params
        self._others: Final = others
        self.setup()

    def setup(self) -> None:
        """Called once, when `name` and `params` are set: make the instance's own fields here. A PluginError or
        ValueError refuses the configuration with its text."""

    def refer(self, name: str, wanted: type[OtherT]) -> OtherT:
        """The instance that a parameter of type `Reference` names; this plugin then reads what that one reads.
        PluginError when it isn't of the extension point `wanted`."""
        found = self._others[name]
        if not isinstance(found, wanted):
            raise PluginError(
                f"{self.name!r} refers to {name!r}, which is a {found.type_name}, not a {wanted.__name__}"
            )
        self.consumes = (*self.consumes, *found.consumes)
        self.reads_headers = (*self.reads_headers, *found.reads_headers)
        return found

    def referred(self) -> tuple["Plugin", ...]:
        """The instances that its parameters name."""
        return tuple([self._others[name] for name in references(self.params)])


def references(params: Params) -> list[str]:
    """Names of the plugin instances that these parameters refer to."""
    found: list[str] = []
    for name, field in type(params).model_fields.items():
        marks = (*field.metadata, *(mark for arg in get_args(field.annotation) for mark in get_args(arg)))
        if any(isinstance(mark, _ReferenceMark) for mark in marks):
            value = cast("str | Iterable[str] | None", getattr(params, name))
            found += [value] if isinstance(value, str) else value or ()
    return found
