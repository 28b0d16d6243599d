"""The models of an engine, from its `/v1/models`."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class UnreadableModels(Exception):
    """The answer isn't a list of models."""


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Models and adapters by name, in the engine's order."""

    models: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    max_context: int | None = None
    """Longest sequence in tokens; the smallest when models differ, None when the engine doesn't report it."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore")

    id: str
    parent: str | None = None
    """vLLM and SGLang name the base model of an adapter here."""
    max_model_len: int | None = None


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")

    data: list[_Entry] = Field(default_factory=list[_Entry])


def served_models(body: bytes) -> ServedModels:
    """Parse the answer of `/v1/models`. Raises UnreadableModels."""
    try:
        entries = _Answer.model_validate_json(body).data
    except ValidationError as error:
        raise UnreadableModels(f"/v1/models answers with {error.error_count()} invalid fields") from error
    lengths = [entry.max_model_len for entry in entries if entry.max_model_len]
    return ServedModels(
        models=tuple(dict.fromkeys(entry.id for entry in entries if entry.parent is None)),
        loras=tuple(dict.fromkeys(entry.id for entry in entries if entry.parent is not None)),
        max_context=min(lengths, default=None),
    )
