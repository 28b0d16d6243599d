"""`/v1/models`: what requests may name, as OpenAI's API lists it."""

from collections.abc import Iterable, Mapping
from typing import Final

from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import Config
from pointsman_core.unknown_model import unknown_model

OWNER: Final = "pointsman"


def model_names(config: Config, pools: Mapping[str, PoolSnapshot]) -> list[str]:
    """Configured models first, names that are rewritten to them, then what engines report beyond."""
    reported = (name for pool, snapshot in pools.items() if pool in config.pools for name in snapshot.models)
    return list(dict.fromkeys((*config.model_names(), *config.aliases(), *reported)))


def model_list(names: Iterable[str], created: int) -> dict[str, object]:
    """The document; `created` is in unix seconds."""
    return {"object": "list", "data": [_entry(name, created) for name in names]}


def model_entry(name: str, names: list[str], created: int) -> dict[str, object]:
    """One model's document. Raises Refusal 404 that names the known ones."""
    if name in names:
        return _entry(name, created)
    raise unknown_model(name, names)


def _entry(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": OWNER}
