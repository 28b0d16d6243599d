"""How much background work an engine may run now, and which of it leaves first. Pure; times are in milliseconds.

The bound is the harm to others: a background request is bound to an engine only while it makes the steps of the
engine's other requests longer by at most a share, `harm`. Two costs count, by the delay model's rates:

- each step takes longer for each further sequence and its context. Where no other request decodes, and a prompt takes
  more than one pass, each of its passes takes longer by a whole step;
- a prompt takes passes in which no other token comes. Prompts of background requests may take a share of an engine's
  time, `prompt_time`, while it has other requests.

Prompts of background requests begin together, so that they share a pass, and only where no prompt of another request is
computed or is about to come.

An engine without other requests delays none: it runs up to `alone` background requests, few enough that those
that stay when another request comes don't matter to it, and as few prompts at once as make a short pass.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from pointsman_core.config.flow_control import Background
from pointsman_delay.pass_model import Rates
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_plugins.scheduling.worker import Hold, Worker

MOST_STOPS: Final = 2
"""A background request is stopped at most so often; then it stays until its end."""
UNKNOWN_COST: Final = 1
"""Background requests that an engine runs beside others while the cost of a step isn't known."""
_SAVED_MS: Final = 1000.0
"""For prompts, an engine saves up no more than this time."""
_PROMPT_MS: Final = 1000.0
"""How long a prompt counts as not computed, where its time isn't known."""


class OpenRequestsOfEngine(NamedTuple):
    """The requests of an engine, as background work sees them."""

    others: int
    """Requests that aren't background work."""
    context_tokens: float
    """Prompt tokens of these."""
    left_tokens: float
    """Prompt tokens of these that aren't computed yet, where none of them decodes; else 0."""
    background: int
    background_tokens: float
    """Their prompts, and half of their answers."""
    prompts: int
    """Background requests whose prompts aren't computed yet."""
    others_prompts: int = 0
    """Likewise of the others, as far as is known."""

    def with_background(self, tokens: float) -> "OpenRequestsOfEngine":
        """With one more background request."""
        return self._replace(
            background=self.background + 1,
            background_tokens=self.background_tokens + tokens,
            prompts=self.prompts + 1,
        )


class PromptTime:
    """The time that an engine may spend on prompts of background requests."""

    __slots__ = ("_at", "_saved")

    def __init__(self, now: float) -> None:
        self._at = now
        self._saved = 0.0

    def may_spend(self, cost_ms: float, share: float, now: float) -> bool:
        """Whether a prompt that takes this long may be computed now, beside other requests."""
        self._saved = min(_SAVED_MS, self._saved + share * max(0.0, now - self._at))
        self._at = now
        return self._saved >= min(cost_ms, _SAVED_MS)

    def spend(self, cost_ms: float) -> None:
        """The prompt is sent."""
        self._saved -= cost_ms


def count_tokens(hold: Hold) -> float:
    """Tokens of a request on the books: its prompt, and half of the longest answer."""
    return hold.change.prompt_tokens + hold.change.output_tokens / 2


def read_engine(
    worker: Worker, rates: Rates | None, budget: float, now: float, leaving: Collection[RequestKey] = ()
) -> OpenRequestsOfEngine:
    """The requests on the books of a worker. `budget`: prompt tokens of a pass; `now` in seconds, as on the books;
    `leaving`: requests that don't count any more."""
    others = background = prompts = others_prompts = decoding = 0
    context = tokens = left = 0.0
    for hold in worker.holds.values():
        if hold.request in leaving:
            continue
        uncached = hold.change.uncached_tokens
        took_ms = _PROMPT_MS if rates is None else rates.passes_ms(uncached, budget)
        # Nothing reports the first token of an answer that isn't streamed.
        may_wait = not hold.confirmed and (hold.change.streamed or (now - hold.at) * 1000.0 < took_ms)
        if hold.change.background:
            background += 1
            tokens += count_tokens(hold)
            prompts += may_wait
        else:
            others += 1
            context += hold.change.prompt_tokens
            left += uncached if may_wait else 0.0
            decoding += not may_wait
            # Without a report of its first token, a request counts so for no longer than it should take.
            others_prompts += may_wait and (now - hold.at) * 1000.0 < took_ms + _PROMPT_MS
    return OpenRequestsOfEngine(
        others=others,
        context_tokens=context,
        left_tokens=0.0 if decoding else left,
        background=background,
        background_tokens=tokens,
        prompts=prompts,
        others_prompts=others_prompts,
    )


def count_starting(
    rule: Background, rates: Rates | None, budget: float, work: OpenRequestsOfEngine, tokens: Sequence[float]
) -> int:
    """How many of the next background requests, which have so many `tokens`, begin together on the engine now.

    Prompts that share a pass spare the others the fixed part of a pass and a decode step. So where `prompts` of them
    don't fit yet, they wait until one that runs there ends."""
    together, more = 0, work
    for each in tokens[: rule.prompts]:
        more = more.with_background(each)
        if not is_within_bound(rule, rates, budget, more):
            break
        together += 1
    waits = work.background and together < min(rule.prompts, len(tokens))
    return 0 if waits else together


def is_within_bound(rule: Background, rates: Rates | None, budget: float, work: OpenRequestsOfEngine) -> bool:
    """Whether the engine may run all of its background requests. `budget`: prompt tokens of a pass."""
    if work.background > rule.alone:
        return False
    if not work.others or not work.background:
        return True
    if rates is None:
        return work.background <= UNKNOWN_COST
    added = rates.batch * work.background + rates.growth * work.background_tokens
    if work.left_tokens > budget:
        return rates.decode + added <= rule.harm * rates.passes_ms(budget, budget)
    return added <= rule.harm * (rates.decode + rates.batch * work.others + rates.growth * work.context_tokens)


def choose_stopped(
    rule: Background, rates: Rates | None, budget: float, work: OpenRequestsOfEngine, running: Iterable[Hold]
) -> list[Hold]:
    """The background requests that leave an engine so that the others stay within the bound: those that came last go
    first, since the least work is lost. One that was stopped `MOST_STOPS` times stays. `running`: those that may
    leave."""
    stopped: list[Hold] = []
    for hold in sorted(running, key=lambda each: -each.at):
        if is_within_bound(rule, rates, budget, work):
            break
        if hold.change.attempt <= MOST_STOPS:
            stopped.append(hold)
            work = work._replace(
                background=work.background - 1, background_tokens=work.background_tokens - count_tokens(hold)
            )
    return stopped
