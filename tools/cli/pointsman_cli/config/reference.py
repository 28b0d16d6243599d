"""Every key of the configuration and every built-in plugin as Markdown, from the models that check them. Pure."""

import enum
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Final, Literal, cast, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pointsman_cli.services import SERVICES
from pointsman_contracts.descriptions import descriptions
from pointsman_core.config import Config, PluginUse, Section
from pointsman_core.config.section import FromTable
from pointsman_core.units import seconds, size
from pointsman_edge.answer_plugins import BUILTIN as RESPONSE_PROCESSORS
from pointsman_engines.dialect import AUTO, ENGINES
from pointsman_engines.status import OPAQUE
from pointsman_plugins.plugin import Plugin
from pointsman_plugins.profile_chains import BUILTIN as REQUEST_PROCESSORS
from pointsman_providers.kinds import KINDS

_HEAD: Final = """\
# Configuration reference

Made from the models that check the file: `pointsman config reference`. [configuration.md](configuration.md) introduces
it. A *plugin* is a type's name or `{use: TYPE, name: INSTANCE, …parameters}`; a *scorer* has a `weight` besides.
"""


def reference() -> str:
    """The whole document."""
    lines = [_HEAD]
    for model, path in _sections(Config, ""):
        lines += [f"## {f'`{path}`' if path else 'The file'}", "", _prose(model), "", "| key | type | default | |"]
        words = descriptions(model)
        rows = (_row(name, field, words.get(name, "")) for name, field in model.model_fields.items())
        lines += ["|---|---|---|---|", *rows, ""]
    lines += ["## Plugins", ""]
    for point, plugins in _plugins().items():
        lines += [f"### {point}", "", "| type | parameters | |", "|---|---|---|"]
        lines += [f"| `{plugin.type_name}` | {_params(plugin)} | {_prose(plugin)} |" for plugin in plugins]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Every section once, where it occurs first; `*` stands for a name of the reader's choice."""
    seen: set[type[BaseModel]] = set()
    waiting = [(model, path)]
    while waiting:
        current, where = waiting.pop(0)
        if current in seen:
            continue
        seen.add(current)
        yield current, where
        for name, field in current.model_fields.items():
            key = f"{where}.{field.alias or name}".strip(".")
            waiting += [(found, key + star) for found, star in _inside(field.annotation) if found not in seen]


def _inside(annotation: object) -> Iterator[tuple[type[BaseModel], str]]:
    """Sections within a type, each with its path from there."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if issubclass(annotation, Section) or (
            issubclass(annotation, PluginUse) and annotation.model_fields.keys() - {"use", "name", "weight"}
        ):
            yield annotation, ""
        return
    origin = get_origin(annotation)
    for argument in get_args(annotation):
        for found, star in _inside(argument):
            yield found, (".*" if origin is dict else "[]" if origin is tuple else "") + star


def _row(name: str, field: FieldInfo, words: str) -> str:
    kind = _type(field)
    return f"| `{field.alias or name}` | {kind} | {_default(field, kind)} | {_one_line(words)} |"


def _type(field: FieldInfo) -> str:
    return _marked(field.metadata) or _name(field.annotation)


def _marked(metadata: Iterable[object]) -> str:
    functions = [getattr(mark, "func", None) for mark in metadata]
    tables = [_TABLES[mark.table] for mark in metadata if isinstance(mark, FromTable)]
    if tables:
        return " or ".join(f"`{value}`" for value in tables[0])
    return "duration" if seconds in functions else "size" if size in functions else ""


_TABLES: Final = {"provider kinds": tuple(KINDS), "engine kinds": (AUTO, *ENGINES, OPAQUE)}


def _name(annotation: object) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _marked(arguments[1:]) or _name(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list of {_name(arguments[0])}"
    if origin is dict:
        return f"{_name(arguments[0])} → {_name(arguments[1])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_name(argument) for argument in arguments if argument is not type(None))
    if not isinstance(annotation, type):
        return str(annotation)
    if issubclass(annotation, PluginUse):
        return "scorer" if "weight" in annotation.model_fields else "plugin"
    if issubclass(annotation, BaseModel):
        return "section"
    return next((name for plain, name in _PLAIN_NAMES.items() if annotation is plain), annotation.__name__)


_PLAIN_NAMES: Final[dict[type, str]] = {
    str: "text",
    int: "number",
    float: "number",
    Decimal: "number",
    bool: "true or false",
}


def _default(field: FieldInfo, kind: str) -> str:
    if field.is_required():
        return "required"
    value = cast("object", field.get_default(call_default_factory=True, validated_data={}))
    if value is None:
        return ""
    if isinstance(value, Section):
        return "its keys' defaults"
    if kind == "duration":
        return f"`{value:g}s`"
    if kind == "size" and isinstance(value, int):
        return f"`{value // 2**20}MiB`" if value and value % 2**20 == 0 else f"`{value}`"
    shown = yaml.safe_dump(_plain(value), default_flow_style=True, width=10_000, sort_keys=False).strip()
    return f"`{shown.removesuffix('...').strip()}`"


def _plain(value: object) -> object:
    """A default as one would write it."""
    if isinstance(value, PluginUse):
        written = value.model_dump(exclude_defaults=True)
        return written["use"] if written.keys() == {"use"} else written or value.use
    if isinstance(value, BaseModel):
        # A short form leaves out every default.
        return {name: _plain(getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[object, object]", value).items()}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [_plain(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Decimal):
        return float(value)
    return value.value if isinstance(value, enum.Enum) else value


def _plugins() -> dict[str, list[type[Plugin]]]:
    """Built-in plugins by service and extension point."""
    found: dict[str, list[type[Plugin]]] = {}
    for service in SERVICES:
        package = f"pointsman_{service.replace('-', '_')}.plugins"
        try:
            folder = importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
            continue
        for module in pkgutil.walk_packages(folder.__path__, f"{package}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, Plugin) and value.__module__ == module.name:
                    plugin = cast("type[Plugin]", value)
                    if plugin.type_name:
                        found.setdefault(f"{service}: {_point(plugin)}", []).append(plugin)
    for plugin in (*REQUEST_PROCESSORS, *RESPONSE_PROCESSORS):
        found.setdefault(f"profiles: {_point(plugin)}", []).append(plugin)
    return {point: sorted(plugins, key=lambda plugin: plugin.type_name) for point, plugins in found.items()}


def _point(plugin: type[Plugin]) -> str:
    """The class right below `Plugin` that this one derives from."""
    return next(base.__name__ for base in reversed(plugin.__mro__) if issubclass(base, Plugin) and base is not Plugin)


def _params(plugin: type[Plugin]) -> str:
    words = descriptions(plugin.params_type)
    return "<br>".join(
        _param(field.alias or name, field, words.get(name, ""))
        for name, field in plugin.params_type.model_fields.items()
    )


def _param(name: str, field: FieldInfo, words: str) -> str:
    default = _default(field, _type(field))
    return " ".join(filter(None, (f"`{name}`", f"({default})" if default else "", _one_line(words))))


def _prose(documented: type) -> str:
    return _one_line(inspect.getdoc(documented) or "")


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
