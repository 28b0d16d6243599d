"""Response headers about a limit, with the names and units of OpenAI's API.

https://platform.openai.com/docs/guides/rate-limits: `x-ratelimit-reset-*` is a duration such as `1s` or `6m0s`. Of
several limits, the headers describe the one with the least left; of a rejection, the one that rejects.
"""

from functools import cache, lru_cache
from math import ceil

from pointsman_contracts.journey import HeaderEdit
from pointsman_contracts.limits import LimitVerdict, LimitWindow, WindowStanding
from pointsman_plugins.preprocessing import Incoming


@cache
def _names(counted: str) -> tuple[str, str, str]:
    """The headers for the limit, what remains and the reset."""
    return f"x-ratelimit-limit-{counted}", f"x-ratelimit-remaining-{counted}", f"x-ratelimit-reset-{counted}"


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
        window = windows[verdict.window]
        _set(incoming, _names(window.counted_unit), window, standings[verdict.window])
        return
    position = 0
    if len(standings) > 1:
        places = range(len(standings))
        position = min(places, key=lambda place: (int(standings[place].remaining), -standings[place].reset_s))
    window, standing = windows[position], standings[position]
    names = _names(window.counted_unit)
    before = incoming.answer_headers.get(names[1])
    if before is None or int(standing.remaining) < int(before.value or 0):
        _set(incoming, names, window, standing)


def _set(incoming: Incoming, names: tuple[str, str, str], window: LimitWindow, standing: WindowStanding) -> None:
    limit, remaining, reset = names
    headers = incoming.answer_headers
    headers[limit] = _edit(limit, int(window.amount))
    headers[remaining] = HeaderEdit(name=remaining, value=str(int(standing.remaining)))
    headers[reset] = HeaderEdit(name=reset, value=duration(standing.reset_s))


@lru_cache(maxsize=1024)
def _edit(name: str, amount: int) -> HeaderEdit:
    return HeaderEdit(name=name, value=str(amount))
