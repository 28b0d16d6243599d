"""What clients are told of a limit, in the headers and the units of OpenAI's API.

https://platform.openai.com/docs/guides/rate-limits: `x-ratelimit-reset-*` is a duration such as `1s` or `6m0s`. Of
several limits the one with the least left is told; of a refusal, the one that refuses.
"""

from math import ceil
from typing import Final

from pointsman_contracts.limits import LimitVerdict, LimitWindow, WindowStanding
from pointsman_preprocessor.domain.processing import Incoming

_PREFIX: Final = "x-ratelimit-"


def duration(seconds: float) -> str:
    """`0s`, `120ms`, `8.64s`, `6m0s`, `23h59m1s`; rounded up to a millisecond."""
    millis = ceil(round(seconds * 1000, 3))
    if millis < 1000:
        return f"{millis}ms" if millis else "0s"
    minutes, rest = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}" if minutes else text


def tell(incoming: Incoming, windows: tuple[LimitWindow, ...], verdict: LimitVerdict) -> None:
    """Set the headers of the answer."""
    standings = verdict.standings
    if not standings or windows[0].unit == "concurrency":
        return
    if verdict.outcome == "refused":
        _set(incoming, windows[verdict.window], standings[verdict.window])
        return
    left, _, position = min(
        (int(standing.remaining), -standing.reset_s, index) for index, standing in enumerate(standings)
    )
    window = windows[position]
    before = incoming.answer_headers.get(f"{_PREFIX}remaining-{window.unit}")
    if before is None or left < int(before.value or 0):
        _set(incoming, window, standings[position])


def _set(incoming: Incoming, window: LimitWindow, standing: WindowStanding) -> None:
    incoming.set_answer_header(f"{_PREFIX}limit-{window.unit}", str(int(window.amount)))
    incoming.set_answer_header(f"{_PREFIX}remaining-{window.unit}", str(int(standing.remaining)))
    incoming.set_answer_header(f"{_PREFIX}reset-{window.unit}", duration(standing.reset_s))
