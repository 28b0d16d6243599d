"""The result of an import: a configuration document, and notes for the reader."""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias, cast

import yaml

from pointsman_cli.words import CommandError

Document: TypeAlias = dict[str, object]


class Note(NamedTuple):
    """A setting that isn't translated as it stands."""

    where: str
    """Its place in the other file, e.g. `router_settings.redis_host`."""
    what: str
    """Why, and what to do."""


class Imported:
    """Grows while a file is read."""

    def __init__(self) -> None:
        self.document: Final[Document] = {}
        self.notes: Final[list[Note]] = []

    def note_ignored(self, where: str, what: str) -> None:
        """Remember a setting that has no equivalent, or isn't needed."""
        self.notes.append(Note(where, what))

    def render_yaml(self, source: str) -> str:
        """The configuration as YAML, with the notes as comments before it."""
        lines = [f"# Made of {source} by `pointsman import`. Check it: pointsman config check FILE"]
        lines += [f"# {note.where}: {note.what}" for note in self.notes]
        return "\n".join(lines) + "\n" + yaml.safe_dump(self.document, sort_keys=False, width=110)


def mapping(value: object, where: str) -> Document:
    """A section; empty when absent. Raises CommandError for any other type."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CommandError(f"{where}: write a section with keys.")
    return {str(key): item for key, item in cast("Mapping[object, object]", value).items()}


def listed(value: object, where: str) -> list[object]:
    """A list; empty when absent. Raises CommandError for any other type."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise CommandError(f"{where}: write a list.")
    return cast("list[object]", value)


def loaded(text: str, source: str) -> Document:
    """A YAML file that is a section. CommandError when it is none."""
    try:
        return mapping(cast("object", yaml.safe_load(text)), source)
    except yaml.YAMLError as error:
        raise CommandError(f"{source} isn't YAML: {error}") from error
