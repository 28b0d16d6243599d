"""`pointsman mirrors`: how other models answered copies of requests, from the stored events."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from statistics import median
from typing import Any, Final

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

Row = dict[str, Any]
"""As printed by `--json`."""


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
    faster = [
        second.duration_ms < first.duration_ms
        for first, second in both
        if first.duration_ms is not None and second.duration_ms is not None
    ]
    likenesses = [event.likeness for event in answered if event.likeness is not None]
    calls = [likeness.same_calls for likeness in likenesses if likeness.same_calls is not None]
    sides = {
        name: _figures([pair[side] for pair in both], [pair[side] for pair in metered])
        for side, name in enumerate(("original", "copy"))
    }
    return {
        "mirror": key[0],
        "model": key[1],
        "candidate": key[2],
        "copies": len(events),
        "outcomes": dict(Counter(event.outcome for event in events)),
        "failed_share": _share([event.outcome != "answered" for event in events]),
        "faster_share": _share(faster),
        "faster_between": list(interval(sum(faster), len(faster))),
        "same_text_share": _share([likeness.same_text for likeness in likenesses]),
        "likeness": _median(likeness.words for likeness in likenesses),
        "same_calls_share": _share(calls),
        "calls": len(calls),
        "metered": len(metered),
        **sides,
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
    tokens = [answer.usage.completion_tokens for answer in metered if answer.usage is not None]
    costs = [answer.cost_nanos for answer in metered if answer.cost_nanos is not None]
    return {
        "ttft_p50_ms": _median(answer.ttft_ms for answer in answers),
        "duration_p50_ms": _median(answer.duration_ms for answer in answers),
        "completion_tokens": sum(tokens) if tokens else None,
        # A sum without the cost of some requests would look like a lower one.
        "dollars": sum(costs) / NANOS if costs and len(costs) == len(metered) else None,
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _share(found: Sequence[bool]) -> float | None:
    return round(sum(found) / len(found), 4) if found else None


def table(rows: Sequence[Row]) -> Table:
    """One row for each pair of models."""
    shown = borderless(
        *folding("mirror", "model", "candidate"),
        *numbers("copies", "failed", "faster", "first token", "whole", "tokens", "cost", "alike", "same calls"),
    )
    for row in rows:
        low, high = map(_percent, row["faster_between"])
        shown.add_row(
            *(row[name] for name in ("mirror", "model", "candidate")),
            f"{row['copies']:,}",
            _percent(row["failed_share"]),
            f"{_percent(row['faster_share'])} ({low} to {high})",
            _both(row, "ttft_p50_ms", ",.0f", " ms"),
            _both(row, "duration_p50_ms", ",.0f", " ms"),
            _both(row, "completion_tokens", ",", ""),
            _both(row, "dollars", ",.4f", " $"),
            _percent(row["likeness"]),
            _percent(row["same_calls_share"]),
        )
    return shown


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"


def _both(row: Row, name: str, form: str, unit: str) -> str:
    figures = row["original"][name], row["copy"][name]
    return " → ".join("unknown" if figure is None else f"{figure:{form}}" for figure in figures) + unit
