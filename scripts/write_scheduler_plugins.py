"""Write the part of the scheduler's README that lists extension points and plugins, from its registries.

python scripts/write_scheduler_plugins.py [--check]
"""

import argparse
import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final, Literal, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from pointsman_contracts.descriptions import descriptions
from pointsman_plugins.plugin import Plugin
from pointsman_plugins.registry import Registry
from pointsman_scheduler.plugins import registries

README: Final = Path(__file__).resolve().parents[1] / "services/scheduler/README.md"
BEGIN: Final = "<!-- plugins: written by scripts/write_scheduler_plugins.py -->\n"
END: Final = "<!-- plugins: end -->\n"


def page() -> str:
    """The whole part, with its markers."""
    lines: list[str] = []
    for registry in registries():
        lines += _point(cast("Registry[Plugin]", registry))
    return BEGIN + "\n".join(lines).rstrip() + "\n" + END


def _point(registry: Registry[Plugin]) -> Iterator[str]:
    yield f"### {registry.point.__name__}"
    yield ""
    yield _words(registry.point)
    yield ""
    yield f"Others by entry point `{registry.point.group}`."
    yield ""
    for name, plugin in registry.types.items():
        yield f"#### `{name}`"
        yield ""
        yield _words(plugin)
        for what, keys in (("Needs", plugin.consumes), ("Gives", plugin.produces)):
            if keys:
                yield f"{what} {', '.join(f'`{key.name}`' for key in keys)}."
        yield ""
        fields = plugin.params_type.model_fields
        words = descriptions(plugin.params_type)
        if fields:
            yield "| parameter | default | |"
            yield "|---|---|---|"
            yield from (_row(parameter, field, words.get(parameter, "")) for parameter, field in fields.items())
            yield ""


def _row(name: str, field: FieldInfo, words: str) -> str:
    default = "required" if field.is_required() else f"`{_shown(field.get_default(call_default_factory=True))}`"
    words = " ".join(words.split())
    if get_origin(field.annotation) is Literal:
        choices = ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
        words = f"One of {choices}. {words}".rstrip()
    return f"| `{name}` | {default} | {words.replace('|', '/')} |"


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return str(cast("object", value.value))
    return "none" if value in (None, (), {}) else str(value)


def _words(of: type) -> str:
    return " ".join(inspect.cleandoc(of.__doc__ or "").split())


def main() -> int:
    """Return 0 when the README is up to date, or was updated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when the README is stale")
    check: bool = parser.parse_args().check
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    current = before + page() + after
    if current == text:
        return 0
    if check:
        sys.stderr.write(f"{README} is stale; run: python scripts/write_scheduler_plugins.py\n")
        return 1
    README.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
