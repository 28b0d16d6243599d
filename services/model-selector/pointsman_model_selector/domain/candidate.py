"""The models that a selector chooses among, as the configuration describes them."""

from pointsman_contracts.money import NANOS
from pointsman_core.config import Config, Model
from pointsman_core.prices import FREE, prices
from pointsman_plugins.selecting import Candidate


def candidates_of(config: Config, names: tuple[str, ...]) -> tuple[Candidate, ...]:
    """These models (all that are configured when empty), in the configuration's order."""
    found: list[Candidate] = []
    known = prices(config)
    for name in names or config.model_names():
        target = config.find_target(name)
        if target is None:
            continue
        # A model that only a pool lists has what a description's defaults say.
        model = config.models.get(name) or Model(pool=target.pool)
        price = known.get(name, FREE)
        found.append(
            Candidate(
                name=name,
                target=target,
                block_tokens=None if target.pool is None else config.pools[target.pool].block_tokens,
                input_cost=price.input / NANOS,
                output_cost=price.output / NANOS,
                quality=model.quality,
                context=model.context,
                features=frozenset(model.features),
                apis=frozenset(model.apis),
                groups=frozenset(model.groups),
                strengths=model.strengths,
                examples=model.examples,
            )
        )
    return tuple(found)
