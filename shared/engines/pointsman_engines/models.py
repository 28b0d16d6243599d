"""The models of an engine, from its `/v1/models`."""

from dataclasses import dataclass
from typing import NamedTuple, cast

import msgspec


class UnreadableModels(Exception):
    """The answer isn't a list of models."""


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Models and adapters by name, in the engine's order."""

    models: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    max_context: int | None = None
    """Longest sequence in tokens; the smallest when models differ, None when the engine doesn't report it."""


def served_models(body: bytes) -> ServedModels:
    """Parse the answer of `/v1/models`. An entry without a name is left out, and so is a length that can't be one.
    Raises UnreadableModels."""
    try:
        document: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableModels("/v1/models answers with what isn't JSON") from error
    data = cast("dict[str, object]", document).get("data", []) if isinstance(document, dict) else None
    if not isinstance(data, list):
        raise UnreadableModels("/v1/models answers with no list of models")
    data = cast("list[object]", data)
    entries = [entry for each in data if (entry := _entry(each)) is not None]
    if data and not entries:
        raise UnreadableModels("/v1/models answers with a list that names no model")
    lengths = [entry.max_model_len for entry in entries if entry.max_model_len]
    return ServedModels(
        models=tuple(dict.fromkeys(entry.id for entry in entries if entry.parent is None)),
        loras=tuple(dict.fromkeys(entry.id for entry in entries if entry.parent is not None)),
        max_context=min(lengths, default=None),
    )


class _Entry(NamedTuple):
    id: str
    parent: str | None
    """vLLM and SGLang name the base model of an adapter here."""
    max_model_len: int | None


def _entry(value: object) -> _Entry | None:
    if not isinstance(value, dict):
        return None
    members = cast("dict[str, object]", value)
    name, parent, length = members.get("id"), members.get("parent"), members.get("max_model_len")
    if not isinstance(name, str) or not name:
        return None
    return _Entry(
        name,
        parent if isinstance(parent, str) else None,
        length if isinstance(length, int) and length > 0 and not isinstance(length, bool) else None,
    )
