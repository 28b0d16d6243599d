"""From `RequestsJudged` to the sums of regret. Sums are of whole microseconds: exact in any order."""

from datetime import UTC, datetime
from typing import NamedTuple

from msgspec.structs import replace

from pointsman_contracts.regret import RegretSum, RequestsJudged
from pointsman_recorder.domain.numbers import MOST, calendar_ms


class RegretAnswer(NamedTuple):
    """The content of an answer."""

    rows: list[RegretSum]
    more: bool
    """Whether there are more rows."""


def regret_rows(event: RequestsJudged) -> tuple[RegretSum, ...]:
    """The parts that an event adds to rows of the sums; one for each hour, profile and reason in it. Raises ValueError
    for an event with a number that the tables don't hold."""
    sums: dict[tuple[str, str, str], list[int]] = {}

    def add(hour: str, profile: str, reason: str, judged: int, regret_us: int, cost_us: int) -> None:
        row = sums.setdefault((hour, profile, reason), [0, 0, 0, 0])
        for place, amount in enumerate((1, judged, regret_us, cost_us)):
            row[place] += amount

    for request in event.requests:
        hour = hour_of(request.at_ms)
        for choice in request.choices:
            add(
                hour=hour,
                profile=choice.profile,
                reason=choice.reason,
                judged=1,
                regret_us=choice.regret_us,
                cost_us=choice.cost_us,
            )
            if choice.filter:
                add(
                    hour=hour,
                    profile=choice.profile,
                    reason=f"filter:{choice.filter}",
                    judged=0,
                    regret_us=choice.filtered_us,
                    cost_us=0,
                )
    if any(abs(amount) > MOST for amounts in sums.values() for amount in amounts):
        raise ValueError(f"an amount is above {MOST}")
    return tuple(
        RegretSum(
            pool=event.pool,
            hour=hour,
            profile=profile,
            reason=reason,
            requests=requests,
            judged=judged,
            regret_us=regret_us,
            cost_us=cost_us,
        )
        for (hour, profile, reason), (requests, judged, regret_us, cost_us) in sums.items()
    )


def hour_of(at_ms: int) -> str:
    """The hour (UTC), as `2026-03-01T09`; a time that no calendar has is the nearest one that it has."""
    return datetime.fromtimestamp(calendar_ms(at_ms) / 1000, UTC).strftime("%Y-%m-%dT%H")


def of_request(body: bytes, request_id: str) -> bytes | None:
    """The event with this request alone; None when it has no such request."""
    event = RequestsJudged.decode(body)
    requests = tuple(request for request in event.requests if request.request_id == request_id)
    return replace(event, requests=requests, unjudged={}).encode() if requests else None
