"""`pointsman mirrors`: how other models answered copies of requests, from the stored events."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from statistics import median
from typing import Final

from pydantic import JsonValue
from rich.console import Console
from rich.table import Table

from pointsman_cli import bus
from pointsman_cli.explain.stored_events import read_events
from pointsman_cli.tables import borderless, folding, numbers
from pointsman_cli.words import CommandError, counted
from pointsman_contracts.mirroring import MirrorCompared, MirroredAnswer
from pointsman_contracts.money import NANOS

_NEEDLE: Final = b'"copy_id"'
_Z: Final = 1.96
"""Of an interval that has the true share in 95 of 100 cases."""

Row = dict[str, JsonValue]


async def mirrors(url: str | None, mirror: str, since: timedelta, console: Console, *, as_json: bool) -> None:
    """Print one row for each mirror and pair of models. CommandError when there is none."""
    pairs: dict[tuple[str, str, str], dict[tuple[str, str], MirrorCompared]] = {}
    async with bus.connected(bus.settings(url), "pointsman mirrors") as client:
        async for event in read_events(client, since, _NEEDLE):
            if isinstance(event, MirrorCompared) and mirror in ("", event.mirror):
                key = event.mirror, event.original.model, event.copy.model
                # A request that was mirrored twice counts once.
                pairs.setdefault(key, {})[event.edge, event.copy_id] = event
    if not pairs:
        minutes = counted(since // timedelta(minutes=1), "minute")
        raise CommandError(
            f"no request of the last {minutes} was mirrored{f' by {mirror}' if mirror else ''}.",
            "docs/mirroring.md says how requests are mirrored; --since looks further back.",
        )
    rows = [compared(key, tuple(found.values())) for key, found in sorted(pairs.items())]
    if as_json:
        for row in rows:
            console.print(json.dumps(row), soft_wrap=True, markup=False)
        return
    console.print(table(rows))


def compared(key: tuple[str, str, str], events: Sequence[MirrorCompared]) -> Row:
    """The comparison of two models. Times, tokens and cost are of the copies that were answered and their originals."""
    answered = [event for event in events if event.outcome == "answered"]
    both = [(event.original, event.copy) for event in answered]
    # Sums of the two sides are of the same requests, and of tokens that both models reported.
    metered = [pair for pair in both if all(map(_is_metered, pair))]
    paired = [
        (first.duration_ms, second.duration_ms)
        for first, second in both
        if first.duration_ms is not None and second.duration_ms is not None
    ]
    faster = sum(second < first for first, second in paired)
    low, high = interval(faster, len(paired))
    outcomes: dict[str, JsonValue] = dict(Counter(event.outcome for event in events))
    likenesses = [event.likeness for event in answered if event.likeness is not None]
    calls = [event.same_calls for event in answered if event.same_calls is not None]
    texts = [event.same_text for event in answered if event.same_text is not None]
    return {
        "mirror": key[0],
        "model": key[1],
        "candidate": key[2],
        "copies": len(events),
        "outcomes": outcomes,
        "failed_share": _share(len(events) - len(answered), len(events)),
        "faster_share": _share(faster, len(paired)),
        "faster_between": [low, high],
        "same_text_share": _share(sum(texts), len(texts)),
        "likeness": median(likenesses) if likenesses else None,
        "same_calls_share": _share(sum(calls), len(calls)),
        "calls": len(calls),
        "metered": len(metered),
        "original": _figures([first for first, _ in both], [first for first, _ in metered]),
        "copy": _figures([second for _, second in both], [second for _, second in metered]),
    }


def interval(count: int, of: int) -> tuple[float, float]:
    """Wilson's interval of a share."""
    if not of:
        return 0.0, 1.0
    share, z2 = count / of, _Z * _Z / of
    middle = share + z2 / 2
    spread = _Z * math.sqrt(share * (1 - share) / of + z2 / (4 * of))
    return round(max(0.0, (middle - spread) / (1 + z2)), 4), round(min(1.0, (middle + spread) / (1 + z2)), 4)


def _is_metered(answer: MirroredAnswer) -> bool:
    return answer.usage is not None and not answer.usage.estimated


def _figures(answers: Sequence[MirroredAnswer], metered: Sequence[MirroredAnswer]) -> Row:
    costs = [answer.cost_nanos for answer in metered]
    known = [cost for cost in costs if cost is not None]
    return {
        "ttft_p50_ms": _median(answer.ttft_ms for answer in answers),
        "duration_p50_ms": _median(answer.duration_ms for answer in answers),
        "completion_tokens": sum(answer.usage.completion_tokens for answer in metered if answer.usage is not None)
        if metered
        else None,
        # A sum without the cost of some requests would look like a lower one.
        "dollars": sum(known) / NANOS if known and len(known) == len(costs) else None,
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _share(count: int, of: int) -> float | None:
    return round(count / of, 4) if of else None


def table(rows: Sequence[Row]) -> Table:
    """One row for each pair of models."""
    shown = borderless(
        *folding("mirror", "model", "candidate"),
        *numbers("copies", "failed", "faster", "first token", "whole", "tokens", "cost", "alike", "same calls"),
    )
    for row in rows:
        first, second = row["original"], row["copy"]
        low, high = row["faster_between"] if isinstance(row["faster_between"], list) else (0.0, 1.0)
        if not isinstance(first, dict) or not isinstance(second, dict):
            continue
        shown.add_row(
            str(row["mirror"]),
            str(row["model"]),
            str(row["candidate"]),
            f"{row['copies']:,}",
            _percent(row["failed_share"]),
            f"{_percent(row['faster_share'])} ({_percent(low)} to {_percent(high)})",
            _both(first["ttft_p50_ms"], second["ttft_p50_ms"], ",.0f", " ms"),
            _both(first["duration_p50_ms"], second["duration_p50_ms"], ",.0f", " ms"),
            _both(first["completion_tokens"], second["completion_tokens"], ",", ""),
            _both(first["dollars"], second["dollars"], ",.4f", " $"),
            _percent(row["likeness"]),
            _percent(row["same_calls_share"]),
        )
    return shown


def _percent(value: JsonValue) -> str:
    return f"{value:.0%}" if isinstance(value, int | float) else "unknown"


def _both(first: JsonValue, second: JsonValue, form: str, unit: str) -> str:
    told = [f"{value:{form}}" if isinstance(value, int | float) else "unknown" for value in (first, second)]
    return f"{told[0]} → {told[1]}{unit}"
