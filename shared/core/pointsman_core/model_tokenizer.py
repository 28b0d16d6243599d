"""Which tokenizer counts a model's prompts."""

from pointsman_core.config.model import Config
from pointsman_core.config.tokenizer import Tokenizer


def tokenizer_of(config: Config, name: str) -> tuple[Tokenizer | None, str]:
    """The tokenizer of a model that requests may name, and the path of its section, for errors. None: it has none."""
    model = config.models.get(name)
    if model is not None and model.tokenizer is not None:
        return model.tokenizer, f"models.{name}.tokenizer"
    target = config.find_target(name)
    if target is None or target.pool is None:
        return None, ""
    return config.pools[target.pool].tokenizer, f"pools.{target.pool}.tokenizer"


def counts_alike(config: Config, name: str, pool: str, model: str) -> bool:
    """Whether the tokens counted for the model `name` are also those of the model that `pool` serves as `model`."""
    target = config.find_target(name)
    # The tokens for an unconfigured name are counted only when all models have one tokenizer.
    if target is None or (target.pool, target.model) == (pool, model):
        return True
    counted, _ = tokenizer_of(config, name)
    return counted is not None and counted == _tokenizer_at(config, pool, model)


def _tokenizer_at(config: Config, pool: str, model: str) -> Tokenizer | None:
    for name, settings in config.models.items():
        if settings.pool == pool and (settings.served_as or name) == model and settings.tokenizer is not None:
            return settings.tokenizer
    there = config.pools.get(pool)
    return None if there is None else there.tokenizer
