"""The differences between two configurations, key by key. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from pointsman_core.config import Config


class ConfigChange(NamedTuple):
    """One key that differs, with its values as JSON; None on the side that has only the default."""

    path: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path}: {self.after}"
        if self.after is None:
            return f"- {self.path}: {self.before}"
        return f"~ {self.path}: {self.before} → {self.after}"


def changes(before: Config, after: Config) -> list[ConfigChange]:
    """Every key with another meaning, in the order of the newer file; formatting and defaults are no difference."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    paths = [*new, *(path for path in old if path not in new)]
    return [ConfigChange(path, old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)]


def _leaves(config: Config) -> Iterator[tuple[str, str]]:
    yield from _below("", cast("object", config.model_dump(mode="json", by_alias=True, exclude_defaults=True)))


def _below(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, below in cast("Mapping[str, object]", value).items():
            yield from _below(f"{path}.{key}" if path else str(key), below)
    elif path:
        yield path, json.dumps(value, ensure_ascii=False)
