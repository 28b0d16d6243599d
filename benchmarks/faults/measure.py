"""The traffic of every case, and the figures read from it."""

from typing import Final

from pointsman_testing import eventually
from pointsman_testing.stack import Stack
from pointsman_testing.traffic import Traffic

STAGES: Final = ("preprocessor", "profile-picker", "model-selector", "scheduler")
BODY: Final = {"model": "auto", "prompt": "a prompt that all of these requests share", "max_tokens": 2}


class Report:
    """Prints one line a measurement and keeps whether all bars were met."""

    def __init__(self) -> None:
        self.met = True

    def line(self, what: str, figure: float, bar: float, unit: str) -> None:
        """One measurement against the most that it may be."""
        met = figure <= bar
        self.met &= met
        print(f"{'met    ' if met else 'NOT met'}  {what:<66} {figure:>6.2f} {unit:<9} (bar: ≤ {bar:g})", flush=True)


def traffic(stack: Stack, rate: float) -> Traffic:
    """The requests of every measurement."""
    return Traffic(f"{stack.door}/v1/completions", rate, BODY, timeout=60)


async def answered(running: Traffic, count: int) -> None:
    """Wait until `count` more requests ended with 200."""
    target = running.statuses()[200] + count
    await eventually(lambda: running.statuses()[200] >= target, timeout=60)


async def refused(running: Traffic, since: float, count: float) -> None:
    """Wait until `count` requests sent since then ended with 503."""
    await eventually(lambda: running.statuses(since=since)[503] >= count, timeout=30)


def longest(running: Traffic, since: float) -> float:
    """The longest that a request sent since then took to end, in seconds."""
    return max((end.took for end in running.ended if end.started >= since), default=0.0)


def steady_again(running: Traffic, since: float) -> float:
    """Seconds from `since` until the last request that failed was sent."""
    return max((end.started - since for end in running.failed() if end.started >= since), default=0.0)


async def mend(stack: Stack, stage: str, how: str) -> None:
    """Bring the replica back; returns when it is ready."""
    if how == "kill":
        await stack.restart(stage, 0)
    else:
        stack.services[stage][0].resume()
