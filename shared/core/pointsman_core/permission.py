"""Which models an identity may use. Looked at wherever a model is settled, so that no alias, choice or fallback leads
around it."""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, cast

from pydantic import JsonValue

from pointsman_core.refusal import Refusal

IDENTITY: Final = "identity"
"""Name of the request attribute that identifies the sender."""
NOT_ALLOWED: Final = "model_not_allowed"
_GROUP: Final = "group:"
_ALIAS: Final = "alias:"


def allowed_models(attributes: Mapping[str, JsonValue]) -> Sequence[str] | None:
    """Names, patterns (`llama-*`), `group:<group>` and `alias:<name>` that the identity may use; None when it may use
    all."""
    identity = attributes.get(IDENTITY)
    models = identity.get("models") if isinstance(identity, dict) else None
    if models is None:
        return None
    return [str(entry) for entry in cast("Sequence[object]", models if isinstance(models, list) else [models])]


def may_use(allowed: Sequence[str] | None, model: str, groups: Collection[str] = ()) -> bool:
    """Whether the model, or one of its groups, is among the allowed ones."""
    if allowed is None:
        return True
    return any(
        entry.removeprefix(_GROUP) in groups if entry.startswith(_GROUP) else fnmatchcase(model, entry)
        for entry in allowed
    )


def may_ask(allowed: Sequence[str], alias: str) -> bool:
    """Whether a request for this name may have any model that a rewrite gives it (`alias:<name>` or a pattern)."""
    return any(entry.startswith(_ALIAS) and fnmatchcase(alias, entry.removeprefix(_ALIAS)) for entry in allowed)


def not_allowed(asked: str) -> Refusal:
    """The 403 for the model that the client asked for; `asked` is the name in the request."""
    return Refusal(
        403,
        f"The model '{asked[:100]}' is not allowed for this identity.",
        type="permission_error",
        code=NOT_ALLOWED,
        param="model",
    )
