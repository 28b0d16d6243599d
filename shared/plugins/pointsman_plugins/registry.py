"""The plugin types of one extension point, and instances of them in the order in which they need each other."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Final, Generic, TypeVar, cast

from pydantic import ValidationError

from pointsman_core.plugins import Gathering, Key, PluginError, Spec, unknown, within
from pointsman_core.wording import Wrong, wrongs
from pointsman_plugins.plugin import Params, Plugin, references

P = TypeVar("P", bound=Plugin)

installed = cache(entry_points)
"""The entry points of every distribution, searched for once: that takes milliseconds, and a scheduler has eleven
registries."""


class Registry(Generic[P]):
    """The plugin types of one extension point: an explicit tuple, and those of other distributions.

    A type name that occurs twice, or an entry point of the point's group that isn't a whole subclass of `point`, is a
    PluginError.
    """

    def __init__(self, point: type[P], builtin: Iterable[type[P]]) -> None:
        self.point: Final = point
        self.kind: Final = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", point.__name__).lower()
        """The extension point in words, e.g. `model filter`."""
        types: dict[str, type[P]] = {}
        for plugin in (*builtin, *self._offered(point.group)):
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
            except Exception as error:  # a plugin's module may raise anything; it then has no plugin
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
        return plugin, checked(plugin, spec, self.kind)

    def one(self, spec: Spec) -> P:
        """Build a single instance that refers to no other. Raises PluginError."""
        plugin, params = self.resolve(spec)
        for reference in references(params):
            raise PluginError(f"{spec.name!r}: {unknown('plugin', reference, ())}")
        return self._made(spec, plugin, params, {})

    def build(
        self,
        specs: Sequence[Spec],
        others: Mapping[str, Plugin] | None = None,
        keep: Callable[[Spec, P], P] | None = None,
    ) -> list[P]:
        """Build the instances in the given order; referenced ones first, wherever they stand. Those that another one of
        the list refers to have `called_by_another`.

        `others` are instances that exist already and may be referred to. `keep` may return an earlier instance in place
        of a new one. PluginError for every type and parameter that is wrong; then on a duplicate name, an unknown
        reference, or a cycle of references, which is named.
        """
        resolved: dict[str, tuple[Spec, type[P], Params]] = {}
        places: dict[str, int] = {}
        wrong = Gathering()
        for position, spec in enumerate(specs):
            with wrong.collect_errors_below(position):
                resolved[spec.name] = (spec, *self.resolve(spec))
            places[spec.name] = position
        wrong.raise_gathered()
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
                made = self._made(spec, plugin, params, available)
                built[name] = available[name] = made if keep is None else keep(spec, made)

        called: set[str] = set()
        for spec in specs:
            build(spec.name, ())
            called.update(references(resolved[spec.name][2]))
        for name, instance in built.items():
            instance.called_by_another = name in called
        return [built[spec.name] for spec in specs]

    def _made(self, spec: Spec, plugin: type[P], params: Params, others: Mapping[str, Plugin]) -> P:
        try:
            return plugin(spec.name, params, others)
        except PluginError:
            raise
        except Exception as error:  # a plugin's class may raise anything; it can't be used as configured
            words = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise PluginError(f"{self.kind} {spec.name!r} ({spec.use}): {words}") from error


def checked(plugin: type[Plugin], spec: Spec, kind: str = "plugin") -> Params:
    """The parameters of `spec`. PluginError names each wrong one, and what would be right."""
    try:
        return plugin.params_type.model_validate(dict(spec.params))
    except ValidationError as error:
        items = wrongs(error)
        problems = "; ".join(_problem(item, plugin.params_type) for item in items)
        raise PluginError(f"{kind} {spec.name!r} ({spec.use}): {problems}", items[0].path) from error


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


def _problem(wrong: Wrong, params: type[Params]) -> str:
    path = ".".join(str(step) for step in wrong.path)
    if wrong.kind == "extra_forbidden":
        return (
            unknown("parameter", path, params.model_fields) if len(wrong.path) == 1 else f"unknown parameter {path!r}"
        )
    return f"{path}: {wrong.text}" if path else wrong.text
