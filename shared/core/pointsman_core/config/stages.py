"""Entries of itineraries, and custom stages."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from pointsman_contracts.journey import AnswerUse
from pointsman_contracts.message import fields_of
from pointsman_contracts.services import REVIEWERS, STAGES, Content, OnError, ReviewMode
from pointsman_core.config.processing import Switch, switched_off
from pointsman_core.config.section import Section
from pointsman_core.units import PositiveDuration

STAGE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")

_ANSWER_MODES: Final[tuple[ReviewMode, ...]] = get_args(ReviewMode)


def as_stage(value: object) -> object:
    """A stage's short form, its name alone, as the section that it stands for."""
    return {"stage": value} if isinstance(value, str) else value


class StageUse(Section):
    """One entry of a profile's itinerary: `service` or `service/policy`."""

    stage: str
    """`service` or `service/policy`, e.g. `guard/strict`; or a name from `stages`."""
    timeout: PositiveDuration | None = None
    """Longest time for which the request waits for the stage. Default: a stage of your own's `timeout`; for others,
    until the request's deadline."""
    on_error: OnError | None = None
    """When the stage has no replica, fails or times out. `deny`: reject the request. `allow`: skip the stage.
    `degrade`: the stage falls back to the part that it can do; it is skipped, as with `allow`, if it can't be
    reached."""
    mode: Annotated[Switch | ReviewMode | None, BeforeValidator(switched_off)] = None
    """`enforce`: its decisions apply. `shadow`: its decisions are only reported, and it reviews a response after the
    client has all of it. `off`: it is skipped. On the way back also `buffer`, `window` and `after`, which override what
    the stage declares, as do the following keys."""
    content: Content | None = None
    """On the way back: the part of a response that the stage gets."""
    window: int | None = Field(default=None, ge=1)
    """On the way back: characters of text in a window."""
    overlap: int | None = Field(default=None, ge=0)
    """On the way back: characters of a window that are shown again with the next one."""
    sentences: bool | None = None
    """On the way back: whether a window may end at the end of a sentence."""
    share: float | None = Field(default=None, gt=0, le=1)
    """On the way back, in mode `after`: the share of the answers that the stage is asked about, e.g. 0.05. All turns of
    a session are in it, or none; stages with the same share are asked about the same answers."""

    @property
    def service(self) -> str:
        return self.stage.partition("/")[0]

    @property
    def policy(self) -> str | None:
        return self.stage.partition("/")[2] or None

    @property
    def shadow(self) -> bool:
        """Whether it only reports its verdict."""
        return self.mode == "shadow"

    @property
    def answer_mode(self) -> ReviewMode | None:
        """When it is asked about answers; None leaves it to what the stage declares."""
        if self.mode == "shadow":
            return "after"
        return next((mode for mode in _ANSWER_MODES if mode == self.mode), None)


Itinerary = tuple[Annotated[StageUse, BeforeValidator(as_stage)], ...]


def active(itinerary: Iterable[StageUse]) -> tuple[StageUse, ...]:
    """The entries that aren't switched off."""
    return tuple(use for use in itinerary if use.mode != "off")


class CustomStage(Section):
    """A custom stage: a process outside this project. Its name is the verb of its subject."""

    timeout: PositiveDuration = 1.0
    """Longest time for which a request waits for the stage."""
    on_error: OnError = "deny"
    """When the stage has no replica, fails or times out. `deny`: reject the request. `allow`: skip the stage.
    `degrade`: as `allow` where the stage can't be reached."""
    mode: ReviewMode = "after"
    """On the way back. `buffer`: it reviews the whole response before the client has any of it. `window`: each piece of
    a stream before the client has it, and a response that isn't streamed as a whole. `after`: once the client has
    everything."""
    content: Content = "none"
    """The part of a response that it gets. `none`: facts only. `text`: the texts. `body`: the bytes."""
    window: int = Field(default=512, ge=1)
    """Characters of text that make up a window."""
    overlap: int = Field(default=64, ge=0)
    """Characters at a window's end that are held back and shown again with the next window: text of at most this length
    is reviewed whole before any of it is sent."""
    sentences: bool = False
    """A window may end early, from half its size on, where a sentence does."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the answers that it is asked about, in mode `after`."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        problem = _misfit(self)
        if problem is not None:
            raise ValueError(problem)
        return self


def _misfit(answer: CustomStage | AnswerUse) -> str | None:
    if answer.mode == "window" and answer.content != "text":
        return "`mode: window` needs `content: text`"
    if answer.mode == "window" and answer.overlap >= answer.window:
        return f"`overlap` ({answer.overlap}) must be less than `window` ({answer.window})"
    if answer.mode != "after" and answer.share < 1:
        return "`share` needs `mode: after`: a stage that may change answers is asked about each"
    return None


_REVIEWERS: Final = {
    name: CustomStage.model_validate({**fields_of(service.review.use), "on_error": service.review.on_error})
    for name, service in REVIEWERS.items()
    if service.review
}
"""Defaults for how this project's services review responses."""


def stage_entry(use: StageUse, declared: Mapping[str, CustomStage]) -> dict[str, object]:
    """An entry on the way in as the contracts' `Stage` has it."""
    custom = declared.get(use.service)
    timeout = use.timeout if use.timeout is not None else (custom.timeout if custom else None)
    on_error = use.on_error or (custom.on_error if custom else STAGES[use.service].on_error)
    return {
        "service": use.service,
        "policy": use.policy,
        "mode": "shadow" if use.shadow else "enforce",
        "timeout_ms": None if timeout is None else round(timeout * 1000),
        # A verdict without effect can't end a request by failing either.
        "on_error": "allow" if use.shadow else on_error,
    }


def response_entry(use: StageUse, declared: Mapping[str, CustomStage]) -> dict[str, object]:
    """An entry on the way back as the contracts' `Stage` has it."""
    custom = _declaration(use, declared)
    entry = stage_entry(use, {use.service: custom})
    entry["answer"] = fields_of(_answer(use, custom))
    return entry


def request_problem(use: StageUse) -> str | None:
    """The problem of an entry on the way in; None when it is right."""
    if use.mode in _ANSWER_MODES:
        return f"`mode: {use.mode}` is for stages on the way back; on the way in it is enforce, shadow or off"
    given = [name for name in ("content", "window", "overlap", "sentences", "share") if getattr(use, name) is not None]
    return f"`{given[0]}` is for stages on the way back" if given else None


def response_problem(use: StageUse, declared: Mapping[str, CustomStage]) -> str | None:
    """The problem of an entry on the way back whose stage exists; None when it is right."""
    if use.service not in declared and use.service not in _REVIEWERS:
        own = ", ".join(f"`{name}`" for name in _REVIEWERS)
        return f"{use.service!r} doesn't review responses; {own} and your own stages do"
    return _misfit(_answer(use, _declaration(use, declared)))


def _declaration(use: StageUse, declared: Mapping[str, CustomStage]) -> CustomStage:
    return declared.get(use.service) or _REVIEWERS[use.service]


def _answer(use: StageUse, custom: CustomStage) -> AnswerUse:
    return AnswerUse(
        mode=use.answer_mode or custom.mode,
        content=use.content or custom.content,
        window=custom.window if use.window is None else use.window,
        overlap=custom.overlap if use.overlap is None else use.overlap,
        sentences=custom.sentences if use.sentences is None else use.sentences,
        share=custom.share if use.share is None else use.share,
    )
