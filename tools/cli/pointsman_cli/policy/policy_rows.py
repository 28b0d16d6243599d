"""The lines of `pointsman policy test`: one for each stage, those that a request doesn't come to too. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from pointsman_core.config import Config, ProcessorUse, StageUse

ANSWER: Final = "the answer"
REFUSAL: Final = "the refusal"
EITHER: Final = "the answer or the refusal"
"""The response that a stage sees."""


class Row(NamedTuple):
    """One stage."""

    stage: str
    mode: str
    """`enforce`, `shadow` or `off`; empty for a stage without this setting."""
    outcome: str
    """See `StageReport.outcome`; `off`, `not reached`, or `bus` for an outcome that only a running gateway can show."""
    took_ms: float | None
    note: str


def processors(uses: Sequence[ProcessorUse], running: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and mode of each processor, in the order in which they run. Disabled ones keep their place."""
    modes = {use.name or use.use: use.mode for use in uses}
    left = list(running)
    for use in uses:
        name = use.name or use.use
        if use.mode == "off":
            yield name, "off"
            continue
        while left and left[0] not in modes:
            yield left.pop(0), "enforce"
        if left:
            left.pop(0)
        yield name, use.mode
    for name in left:
        yield name, "enforce"


def unreached_processors(uses: Sequence[ProcessorUse], running: Sequence[str]) -> Iterator[Row]:
    """The processors of a request that doesn't come to them."""
    for name, mode in processors(uses, running):
        yield _unreached(name, mode)


def unpicked(config: Config, sees: str = REFUSAL) -> Iterator[Row]:
    """The rows after the processors, for a request that ends there."""
    yield _unreached("profile-picker", "")
    yield from unsettled(config, None, sees)


def unsettled(config: Config, profile: str | None, sees: str = REFUSAL) -> Iterator[Row]:
    """The rows after the profile-picker, for a request that ends there. None: it picked no profile."""
    if profile is None and len(config.profiles) > 1:
        yield _unreached("stages of its profile", "")._replace(note="the profile-picker would say which profile")
        yield from answers((), config.postprocessing, sees)
        return
    use = next(iter(config.profiles.values())) if profile is None else config.profiles[profile]
    for stage in use.request:
        yield _unreached(stage.stage, mode_of(stage))
    yield from answers(use.response, config.postprocessing, sees)


def answers(response: Iterable[StageUse], everywhere: Iterable[StageUse], sees: str) -> Iterator[Row]:
    """The way back: the profile's stages, which see only answers, and those of `postprocessing`, which see every
    response."""
    for use in response:
        row = _unreached(f"answer: {use.stage}", mode_of(use))
        yield row if sees != ANSWER or row.outcome == "off" else row._replace(outcome="bus", note=f"sees {sees}")
    for use in everywhere:
        row = _unreached(f"answer: {use.stage}", mode_of(use))
        yield row if row.outcome == "off" else row._replace(outcome="bus", note=f"sees {sees}")


def mode_of(use: StageUse) -> str:
    return "off" if use.mode == "off" else "shadow" if use.shadow else "enforce"


def _unreached(stage: str, mode: str) -> Row:
    return Row(stage, mode, "off" if mode == "off" else "not reached", None, "")
