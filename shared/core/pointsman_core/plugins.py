"""Plugins: what a strategy is, how it is found, how its parameters are checked, in which order it is built.

A plugin has a type name (which class), an instance name (which configuration), strict parameters, and declared
inputs and outputs. Extension points derive from `Plugin` and add the one method that they are about. Three lifetimes
of state: a request (attributes), a plugin instance (its own fields), an endpoint (the owner's tables).
"""

import difflib
import re
from abc import ABC
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, ClassVar, Final, Generic, NamedTuple, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from pointsman_core.wording import Wrong, wrongs

T_co = TypeVar("T_co", covariant=True)
P = TypeVar("P", bound="Plugin")


class PluginError(ValueError):
    """A plugin can't be used as configured. The message names the instance and what would be right; `path` leads to
    the offending key from where the plugin, or the list of plugins, is configured. `further` are errors beside it."""

    def __init__(self, message: str, path: Sequence[str | int] = (), further: "Sequence[PluginError]" = ()) -> None:
        super().__init__(message)
        self.path: Final = tuple(path)
        self.further: Final = tuple(further)

    def within(self, *above: str | int) -> "PluginError":
        """The same error, seen from further up."""
        return PluginError(str(self), (*above, *self.path), [other.within(*above) for other in self.further])

    def each(self) -> "list[PluginError]":
        """This error and those beside it, one by one."""
        return [PluginError(str(self), self.path), *(one for other in self.further for one in other.each())]


@contextmanager
def within(*above: str | int) -> Generator[None]:
    """Place the PluginErrors of this block below the keys `above`."""
    try:
        yield
    except PluginError as error:
        raise error.within(*above) from error


class Gathering:
    """Gathers the PluginErrors of several places, so that all of them are told at once."""

    def __init__(self) -> None:
        self._found: Final[list[PluginError]] = []

    @contextmanager
    def within(self, *above: str | int) -> Generator[None]:
        """Keep the PluginError of this block, placed below the keys `above`, and go on behind it."""
        try:
            yield
        except PluginError as error:
            self._found.append(error.within(*above))

    def tell(self) -> None:
        """Raise what was gathered as one PluginError."""
        if self._found:
            first, *others = self._found
            raise PluginError(str(first), first.path, (*first.further, *others)) from first


class Key(Generic[T_co]):
    """A typed name of a request attribute, owned by the plugin that produces it. Keys are constants of modules."""

    __slots__ = ("name", "value_type")

    def __init__(self, name: str, value_type: type[T_co]) -> None:
        self.name: Final = name
        self.value_type: Final = value_type

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


class Params(BaseModel):
    """Parameters of a plugin. Unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)


class _ReferenceMark(NamedTuple):
    what: str = "plugin"


Reference = Annotated[str, _ReferenceMark()]
"""A parameter of this type names another plugin instance, which is built first."""


class Spec(NamedTuple):
    """One configured instance: type name, instance name, parameters as written."""

    use: str
    name: str
    params: Mapping[str, object]


class Plugin(ABC):  # noqa: B024 - each extension point adds the methods that a plugin must have
    """Base of every extension point. A subclass sets `type_name` and, if it has parameters, `params_type`."""

    type_name: ClassVar[str] = ""
    """As written in configuration; unique within its extension point."""
    params_type: ClassVar[type[Params]] = Params
    consumes: ClassVar[tuple[Key[object], ...]] = ()
    """Attributes that must have been produced before this plugin runs."""
    produces: ClassVar[tuple[Key[object], ...]] = ()

    def __init__(self, name: str, params: Params, others: "Mapping[str, Plugin]") -> None:
        """`others` holds the instances that the parameters of type `Reference` name."""
        del params, others
        self.name: Final = name


def refer(others: Mapping[str, Plugin], name: str, wanted: type[P], by: str) -> P:
    """The referenced instance, if it is of the extension point that `by` needs; PluginError otherwise."""
    found = others[name]
    if not isinstance(found, wanted):
        raise PluginError(f"{by!r} refers to {name!r}, which is a {found.type_name}, not a {wanted.__name__}")
    return found


installed = cache(entry_points)
"""The entry points of every distribution, searched for once: that takes milliseconds, and a scheduler has eleven
registries."""


class Registry(Generic[P]):
    """The plugin types of one extension point: an explicit tuple, and those of other distributions.

    `group` is the entry-point group in which other distributions offer theirs. A type name that occurs twice, or an
    entry point that isn't a whole subclass of `point`, is a PluginError.
    """

    def __init__(self, point: type[P], builtin: Iterable[type[P]], group: str) -> None:
        self.point: Final = point
        self.group: Final = group
        self.kind: Final = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", point.__name__).lower()
        """The extension point in words, e.g. `model filter`."""
        types: dict[str, type[P]] = {}
        for plugin in (*builtin, *self._offered(group)):
            if not plugin.type_name or plugin.type_name in types:
                raise PluginError(
                    f"{plugin.__module__}.{plugin.__name__}: {self.kind} type {plugin.type_name!r} is taken"
                )
            types[plugin.type_name] = plugin
        self.types: Final[Mapping[str, type[P]]] = types

    def _offered(self, group: str) -> list[type[P]]:
        found: list[type[P]] = []
        for entry in sorted(installed().select(group=group), key=lambda entry: entry.name):
            try:
                plugin = cast("object", entry.load())
            except Exception as error:  # whatever somebody's module raises, there is no plugin in it
                words = f"{entry.value} can't be imported: {type(error).__name__}: {error}"
                raise PluginError(f"entry point {entry.name!r} of {group}: {words}") from error
            if not (isinstance(plugin, type) and issubclass(plugin, self.point)):
                raise PluginError(f"entry point {entry.name!r} of {group}: {entry.value} is not a {self.kind}")
            missing = sorted(getattr(plugin, "__abstractmethods__", ()))
            if missing:
                raise PluginError(f"entry point {entry.name!r} of {group}: {entry.value} lacks {', '.join(missing)}")
            found.append(plugin)
        return found

    def resolve(self, spec: Spec) -> tuple[type[P], Params]:
        """The class and checked parameters of `spec`. PluginError names the offender and the known names."""
        plugin = self.types.get(spec.use)
        if plugin is None:
            raise PluginError(unknown(f"{self.kind} type", spec.use, self.types), ("use",))
        try:
            return plugin, plugin.params_type.model_validate(dict(spec.params))
        except ValidationError as error:
            items = wrongs(error)
            problems = "; ".join(_problem(item, plugin.params_type) for item in items)
            words = f"{self.kind} {spec.name!r} ({spec.use}): {problems}"
            raise PluginError(words, items[0].path) from error

    def one(self, spec: Spec) -> P:
        """Build a single instance that refers to no other. Raises PluginError."""
        plugin, params = self.resolve(spec)
        for reference in references(params):
            raise PluginError(f"{spec.name!r}: {unknown('plugin', reference, ())}")
        return self._made(spec, plugin, params, {})

    def build(self, specs: Sequence[Spec], others: Mapping[str, Plugin] | None = None) -> list[P]:
        """Build the instances in the given order; referenced ones first, wherever they stand.

        `others` are instances that exist already and may be referred to. PluginError for every type and parameter that
        is wrong; then on a duplicate name, an unknown reference, or a cycle of references, which is named.
        """
        resolved: dict[str, tuple[Spec, type[P], Params]] = {}
        places: dict[str, int] = {}
        wrong = Gathering()
        for position, spec in enumerate(specs):
            with wrong.within(position):
                resolved[spec.name] = (spec, *self.resolve(spec))
            places[spec.name] = position
        wrong.tell()
        if len(resolved) < len(specs):
            names = [spec.name for spec in specs]
            twice = next(name for name in names if names.count(name) > 1)
            raise PluginError(f"{self.kind} {twice!r} is configured twice; give one of them another `name`")
        built: dict[str, P] = {}
        available = dict(others or {})

        def build(name: str, path: tuple[str, ...]) -> None:
            if name in built:
                return
            if name in path:
                raise PluginError(f"cycle of references: {' -> '.join((*path[path.index(name) :], name))}")
            spec, plugin, params = resolved[name]
            for reference in references(params):
                if reference in resolved:
                    build(reference, (*path, name))
                elif reference not in available:
                    words = f"{name!r}: " + unknown("plugin", reference, (*resolved, *available))
                    raise PluginError(words, (places[name],))
            with within(places[name]):
                built[name] = available[name] = self._made(spec, plugin, params, available)

        for spec in specs:
            build(spec.name, ())
        return [built[spec.name] for spec in specs]

    def _made(self, spec: Spec, plugin: type[P], params: Params, others: Mapping[str, Plugin]) -> P:
        try:
            return plugin(spec.name, params, others)
        except PluginError:
            raise
        except Exception as error:  # whatever somebody's class raises, it can't be used as configured
            words = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise PluginError(f"{self.kind} {spec.name!r} ({spec.use}): {words}") from error


def references(params: Params) -> list[str]:
    """Names of the plugin instances that these parameters refer to."""
    found: list[str] = []
    for name, field in type(params).model_fields.items():
        marks = (*field.metadata, *(mark for arg in get_args(field.annotation) for mark in get_args(arg)))
        if any(isinstance(mark, _ReferenceMark) for mark in marks):
            value = cast("str | Iterable[str] | None", getattr(params, name))
            found += [value] if isinstance(value, str) else value or ()
    return found


def check_dataflow(plugins: Sequence[Plugin], given: Iterable[Key[object]] = ()) -> None:
    """Check that every attribute is produced before it is consumed. PluginError names the missing producer."""
    produced = {key.name for key in given}
    for position, plugin in enumerate(plugins):
        for key in plugin.consumes:
            if key.name in produced:
                continue
            later = next((p.name for p in plugins[position + 1 :] if any(k.name == key.name for k in p.produces)), None)
            hint = f"{later!r} produces it, but runs later" if later else "no configured plugin produces it"
            raise PluginError(f"{plugin.name!r} needs the attribute {key.name!r}: {hint}")
        produced |= {key.name for key in plugin.produces}


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that doesn't exist: what it is, the likely one, all known ones."""
    names = sorted(known)
    likely = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {likely[0]!r}? " if likely else ""
    return f"unknown {what} {name!r}; {hint}known: {', '.join(names) or 'none'}"


def _problem(wrong: Wrong, params: type[Params]) -> str:
    path = ".".join(str(step) for step in wrong.path)
    if wrong.kind == "extra_forbidden":
        return (
            unknown("parameter", path, params.model_fields) if len(wrong.path) == 1 else f"unknown parameter {path!r}"
        )
    return f"{path}: {wrong.text}" if path else wrong.text
