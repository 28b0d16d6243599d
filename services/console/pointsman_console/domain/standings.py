"""How much of each limit and budget is used, from the counts that preprocessors keep. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, cast

from pydantic import JsonValue

from pointsman_contracts.limits import CounterState, LimitShard
from pointsman_contracts.money import dollars
from pointsman_core.budget_amount import Amount, amounts
from pointsman_core.config import Config, ProcessorUse
from pointsman_core.rate import Rate, rates

SLOTS: Final = 60
"""Slots in a window of tokens, as the keeper has them (`CounterState.first_slot`)."""
MOST: Final = 500
"""Rows that a page gets; the fullest."""
CONCURRENCY: Final = "concurrency"
_DAY_S: Final = 86400.0
_LONGEST: Final = 64


class Standing(NamedTuple):
    """One limit or budget of one scope."""

    limit: str
    unit: str
    """`requests`, `tokens`, `open requests` or `dollars`."""
    scope: Mapping[str, str]
    """Scope → value, e.g. tenant → acme."""
    period: str
    used: float
    amount: float | None
    """None when it isn't known: the limit's configuration has gone, or an identity has its own."""

    @property
    def used_share(self) -> float:
        """Used part; above 1 where more was used than allowed."""
        return self.used / self.amount if self.amount else 0.0

    def to_document(self) -> dict[str, JsonValue]:
        """As the page takes it."""
        return {**self._asdict(), "scope": dict(self.scope), "share": round(self.used_share, 4)}


def standings(shards: Iterable[LimitShard], config: Config, now: float) -> tuple[list[Standing], int]:
    """The fullest limits and budgets, and how many there are. `now`: unix seconds."""
    uses = {use.spec.name: use for use in config.preprocessing}
    found: list[Standing] = []
    for shard in shards:
        found += [
            _counted(counter, uses.get(counter.limit), now)
            for counter in shard.counters
            if not counter.window.startswith(CONCURRENCY)
        ]
        found += _open(shard, uses)
        for account in shard.accounts:
            found += _spent(account.limit, account.scope, account.days, uses.get(account.limit), now)
    found.sort(key=lambda each: (-each.used_share, -each.used, each.limit, *each.scope.values()))
    return found[:MOST], len(found)


def _counted(counter: CounterState, use: ProcessorUse | None, now: float) -> Standing:
    unit, period, measure = (*counter.window.split("/", 2), "")[:3]
    period_s = float(period or 0)
    scope = _scope(counter.scope, use)
    if counter.due is not None:
        each_s = counter.each_s or 0.0
        used = max(0.0, counter.due - now) / each_s if each_s else 0.0
        # The rate at which it is counted is in the count itself.
        amount = period_s / each_s if each_s else None
        return Standing(
            limit=counter.limit, unit=measure or unit, scope=scope, period=_words(period_s), used=used, amount=amount
        )
    oldest = int(now / (period_s / SLOTS)) - SLOTS if period_s else 0
    used = sum(tokens for place, tokens in enumerate(counter.slots, start=counter.first_slot) if place > oldest)
    return Standing(
        limit=counter.limit,
        unit=measure or unit,
        scope=scope,
        period=_words(period_s),
        used=used,
        amount=_amount(use, period_s),
    )


def _open(shard: LimitShard, uses: Mapping[str, ProcessorUse]) -> Iterator[Standing]:
    """Limits of open requests have no count of their own: it follows from the charges."""
    counts: dict[tuple[str, str], float] = {}
    for charge in shard.charges:
        if any(window.startswith(CONCURRENCY) for window in charge.windows):
            key = charge.limit, charge.scope
            counts[key] = counts.get(key, 0.0) + charge.cost
    for (limit, text), count in counts.items():
        use = uses.get(limit)
        amount = None if use is None else use.spec.params.get("limit")
        known = float(amount) if isinstance(amount, int | float) else None
        yield Standing(limit=limit, unit="open requests", scope=_scope(text, use), period="", used=count, amount=known)


def _spent(limit: str, text: str, days: Mapping[int, int], use: ProcessorUse | None, now: float) -> Iterator[Standing]:
    today = int(now // _DAY_S)
    for each in _budgets(use):
        first = today - each.days + 1 if each.days is not None else _first_of_month(now)
        spent = sum(nanos for day, nanos in days.items() if day >= first)
        yield Standing(
            limit=limit,
            unit="dollars",
            scope=_scope(text, use),
            period=each.period_name,
            used=float(dollars(spent)),
            amount=float(dollars(each.nanos)),
        )


def _budgets(use: ProcessorUse | None) -> Sequence[Amount]:
    amount = None if use is None else use.spec.params.get("amount")
    try:
        return amounts(amount) if amount is not None else ()
    except ValueError:
        return ()


def _amount(use: ProcessorUse | None, period_s: float) -> float | None:
    """The configured amount; an identity's own amount isn't in the count."""
    value = None if use is None else use.spec.params.get("amount", use.spec.params.get("rate"))
    try:
        found: Sequence[Rate] = rates(value) if value is not None else ()
    except ValueError:
        return None
    return next((each.amount for each in found if abs(each.period_s - period_s) < 1e-6), None)


def _scope(text: str, use: ProcessorUse | None) -> dict[str, str]:
    """Values by name; a header's value is a hash. A count that many scopes share has the scope `*`."""
    names = [] if use is None else [str(name) for name in cast("list[object]", use.spec.params.get("per") or [])]
    found: dict[str, str] = {}
    position = 0
    while text:
        size, colon, rest = text.partition(":")
        if not colon or not size.isdecimal():
            return {"scope": text}
        value, text = rest[: int(size)], rest[int(size) :]
        name = names[position] if position < len(names) else f"scope {position + 1}"
        found[name] = value.lstrip("\0")[:_LONGEST]
        position += 1
    return found


def _words(period_s: float) -> str:
    return str(Rate(1, period_s)).partition("/")[2] if period_s else ""


def _first_of_month(now: float) -> int:
    at = datetime.fromtimestamp(now, UTC)
    return int(at.replace(day=1).timestamp() // _DAY_S)
