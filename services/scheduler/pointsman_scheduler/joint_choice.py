"""Settles the model of a request that the model-selector left open: by the time that each model's best engine would
take now, which only a scheduler knows, by cost and quality."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from pointsman_contracts.journey import Journey, RequestFacts, retold
from pointsman_contracts.model_choice import ModelOption
from pointsman_core.joint_choice import PREDICTED, OptionTime, measured, rank_models
from pointsman_core.settled_target import settled
from pointsman_hosting.configuration import Configuration
from pointsman_runtime.telling.counting import Counter
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.foreseen_times import foresee_in_pool, serving_engines

_NO_ENGINE: Final = "no healthy engine serves it"


class JointChooser:
    """Asks each pool how long the request would take there. Asking changes no state of a pool, so its flight log
    replays whether it was asked or not."""

    def __init__(
        self,
        configuration: Configuration[Mapping[str, Policy]],
        pools: Pools,
        chosen: Counter,
        has_room: Callable[[str, int], bool],
    ) -> None:
        """`has_room`: whether flow control of a pool lets a request of this priority pass now."""
        self._configuration: Final = configuration
        self._pools: Final = pools
        self._chosen: Final = chosen
        self._has_room: Final = has_room

    def settle_model(self, journey: Journey) -> Journey:
        """The journey with its model. Raises Refusal when all models are beyond a limit and the choice is strict."""
        choice, target = journey.joint, journey.target
        if choice is None or target is None:
            return journey
        own = next((option for option in choice.options if option.target == target), None)
        if own is None or journey.request.workers is not None:
            # A stage in between settled another model, or a proxy the engine.
            return journey.changed(**settled(journey, target, None if own is None else own.block_tokens))
        facts, now = journey.request, time.monotonic()
        times = [self._time_of(journey, option, now) for option in choice.options]
        ranked = rank_models(choice, facts.prompt_tokens, facts.answers, times)
        # Without any engine the first model's pool words the refusal.
        order = ranked.order or (choice.options.index(own),)
        held = self._reserved(journey, choice.options)
        if held is not None:
            order = (held, *[position for position in order if position != held])
        options = [choice.options[position] for position in order]
        settled_on = options[0]
        changes = settled(journey, settled_on.target, settled_on.block_tokens)
        changes["alternatives"] = tuple([option.target for option in options[1 : 1 + choice.fallbacks]])
        changes["headers"] = retold(journey.headers, settled_on.target)
        changes["models"] = ranked.points
        if not facts.dry_run:
            self._chosen.labels(settled_on.name, times[order[0]].time_from or "unknown").inc()
        return journey.changed(**changes)

    def _reserved(self, journey: Journey, options: tuple[ModelOption, ...]) -> int | None:
        """The option whose pool has the reservation of a request that was sent again."""
        if journey.attempt == 1:
            return None
        key = (journey.edge, journey.request_id)
        for position, option in enumerate(options):
            pool = self._pools.get(option.target.pool or "")
            if pool is not None and pool.books.find_reservation(key) is not None:
                return position
        return None

    def _time_of(self, journey: Journey, option: ModelOption, now: float) -> OptionTime:
        target = option.target
        if target.pool is None:
            return measured(option)
        pool = self._pools.get(target.pool)
        policy = self._configuration.revisions[journey.revision].compiled.get(target.pool)
        if pool is None or policy is None:
            return OptionTime(out=_NO_ENGINE)
        facts = settled(journey, target, option.block_tokens).get("request", journey.request)
        full = not self._has_room(target.pool, facts.priority)
        return time_in_pool(pool, policy, option, facts, now)._replace(full=full)


def time_in_pool(
    pool: PoolScheduler, policy: Policy, option: ModelOption, facts: RequestFacts, now: float
) -> OptionTime:
    """How long the request would take in the option's pool at this monotonic time. `facts` have the blocks that the
    prompt has there."""
    name = option.target.lora or option.target.model
    engines = serving_engines(pool, name, now)
    if not engines:
        return OptionTime(out=_NO_ENGINE)
    idle = any(not worker.open for worker in engines)
    known = measured(option)._replace(idle=idle)
    foreseen = foresee_in_pool(
        pool=pool, policy=policy, engines=engines, facts=facts, output=option.output_tokens, now=now
    )
    if foreseen is None:
        return known
    return OptionTime(
        **foreseen.times._asdict(),
        time_from=PREDICTED,
        worker=foreseen.worker.name,
        cached_tokens=foreseen.cached_tokens,
        idle=idle,
    )
