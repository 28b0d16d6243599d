"""Guard policies: the detectors that check prompts and answers, and the action for each category of finding."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from pydantic import Field

from pointsman_core.config.section import PluginUse, Problem, Section
from pointsman_core.config.stages import StageUse, active
from pointsman_core.plugins import unknown

Action = Literal["block", "redact", "flag", "ignore"]

GUARD: Final = "guard"
"""The stage."""
DEFAULT_GUARD: Final = "default"
"""The policy of an itinerary's `guard` without a name; it needs no entry in `guards`."""

_ACTIONS: Final[Mapping[str, Action]] = {
    "secret": "block",
    "pii": "redact",
    "injection": "block",
    "unreadable.tokens": "block",
    "unreadable.media": "flag",
    "unreadable.long": "flag",
}
_BUILT_IN: Final[Mapping[str, Mapping[str, Action]]] = {"request": {}, "response": {"injection": "flag"}}

Direction = Literal["request", "response"]


class Guard(Section):
    """One policy. The same detectors look at prompts and at answers.

    A category is a dotted name, e.g. `pii.card`. Its action is that of the longest name that it begins with: first in
    `request` or `response`, then in `actions`, then the built-in ones, then `otherwise`.
    """

    detectors: tuple[PluginUse, ...] = Field(default=(PluginUse(use="patterns"),), min_length=1)
    """The detectors, in this order; put the cheapest first. After a finding that blocks, the remaining ones are
    skipped."""
    actions: dict[str, Action] = Field(default_factory=dict[str, Action])
    """Action by category. `block`: 403, or the end of a stream. `redact`: a placeholder replaces the text. `flag`:
    recorded in the trail and counted. `ignore`: no action. Built in: `secret` and `injection` block, `pii` is
    redacted."""
    request: dict[str, Action] = Field(default_factory=dict[str, Action])
    """Actions for prompts only."""
    response: dict[str, Action] = Field(default_factory=dict[str, Action])
    """Actions for answers only. Built in: `injection` is flagged."""
    otherwise: Action = "block"
    """For categories without an action, e.g. those of a classifier."""
    restore: bool = False
    """The client gets the original back where an answer has a placeholder that stands for something of its prompt.
    The profile needs this guard on the way back too."""

    def action_for(self, category: str, direction: Direction) -> Action:
        """The action for a finding of this category."""
        for actions in self._actions(direction):
            name = category
            while name:
                if name in actions:
                    return actions[name]
                name = name.rpartition(".")[0]
        return self.otherwise

    def redacts(self, direction: Direction) -> bool:
        """Whether any category may be redacted."""
        named = dict.fromkeys(category for actions in self._actions(direction) for category in actions)
        return self.otherwise == "redact" or any(self.action_for(category, direction) == "redact" for category in named)

    def _actions(self, direction: Direction) -> tuple[Mapping[str, Action], ...]:
        own = self.request if direction == "request" else self.response
        return own, self.actions, _BUILT_IN[direction], _ACTIONS


def guard_problems(
    where: str, request: Sequence[StageUse], response: Sequence[StageUse], guards: Mapping[str, Guard]
) -> Iterator[Problem]:
    """Problems of a profile's guards. `where` is the profile's path, `response` every stage that its answers pass."""
    coming_back = [use.policy or DEFAULT_GUARD for use in active(response) if use.service == GUARD and not use.shadow]
    redacting: list[str] = []
    for position, use in enumerate(request):
        if use.service != GUARD or use.mode == "off":
            continue
        name = use.policy or DEFAULT_GUARD
        guard = guards.get(name, Guard() if name == DEFAULT_GUARD else None)
        path = f"{where}.request.{position}"
        if guard is None:
            yield path, unknown("guard", name, (*guards, DEFAULT_GUARD))
            continue
        if guard.redacts("request") and not use.shadow:
            redacting.append(name)
            if len(redacting) > 1:
                yield (
                    path,
                    f"the guard {redacting[0]!r} redacts the prompt already; only one guard of a profile may redact it",
                )
            if guard.restore and name not in coming_back:
                yield (
                    path,
                    f"guards.{name} has `restore: true`; put {use.stage!r} into `response` too, where it gives "
                    "the originals back",
                )


def response_guard_problems(where: str, response: Sequence[StageUse], guards: Mapping[str, Guard]) -> Iterator[Problem]:
    """Problems of the guards on a way back; `where` is the path of the list."""
    for position, use in enumerate(response):
        if use.service != GUARD:
            continue
        name = use.policy or DEFAULT_GUARD
        if name not in (*guards, DEFAULT_GUARD):
            yield f"{where}.{position}", unknown("guard", name, (*guards, DEFAULT_GUARD))
        if use.content not in (None, "text"):
            yield f"{where}.{position}", "a guard always gets texts; leave `content` out"
