"""Which stages must come before which others, and why (S3-2). Any other order is the operator's choice."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from pointsman_contracts.services import REVIEWERS, STAGES, Before
from pointsman_core.config.section import Problem
from pointsman_core.config.stages import StageUse, active


def _rules(orders: Iterable[tuple[str, tuple[Before, ...]]]) -> tuple[tuple[str, Before], ...]:
    """Each rule with the stage that has it."""
    return tuple((name, rule) for name, order in orders for rule in order)


_ON_THE_WAY_IN: Final = _rules((stage.name, stage.order) for stage in STAGES.values())
_ON_THE_WAY_BACK: Final = _rules((name, each.review.order) for name, each in REVIEWERS.items() if each.review)


def request_order_problems(where: str, stages: Sequence[StageUse], excepted: Collection[str]) -> Iterator[Problem]:
    """Problems in the order of a profile's stages on the way in; `where` is the path of their list."""
    places = [f"{where}.{position}" for position in range(len(stages))]
    yield from _misplaced(list(zip(places, stages, strict=True)), _ON_THE_WAY_IN, excepted)
    running = [(place, use) for place, use in zip(places, stages, strict=True) if use.mode != "off"]
    if not running or running[-1][1].service != "scheduler" or running[-1][1].shadow:
        yield where, "the last stage must be `scheduler`, which answers the edge"
    for place, use in running[:-1]:
        if use.service == "scheduler":
            yield place, "scheduler answers the edge, so no stage after it would run; put it last"


def response_order_problems(
    where: str, stages: Sequence[StageUse], postprocessing: Sequence[StageUse], excepted: Collection[str]
) -> Iterator[Problem]:
    """Problems in the order of the stages that a profile's answers pass: its own, then those of every answer."""
    placed = [(f"{where}.{position}", use) for position, use in enumerate(stages)]
    placed += [(f"postprocessing.{position}", use) for position, use in enumerate(postprocessing)]
    yield from _misplaced(placed, _ON_THE_WAY_BACK, excepted)


def _misplaced(
    placed: Sequence[tuple[str, StageUse]], rules: Sequence[tuple[str, Before]], excepted: Collection[str]
) -> Iterator[Problem]:
    running = [(place, use) for place, use in placed if active((use,))]
    for stage, rule in rules:
        if rule.rule in excepted:
            continue
        early = next((place for place, use in running if use.service == stage), None)
        late = [place for place, use in running if use.service == rule.earlier]
        if early is None or not late:
            continue
        places = [place for place, _ in running]
        if places.index(late[-1]) > places.index(early):
            yield (
                early,
                f"{stage} stands before {rule.earlier} ({late[-1]}), and {rule.why}; put it after that stage, or name "
                f"the rule in `order_exceptions` ({rule.rule})",
            )
