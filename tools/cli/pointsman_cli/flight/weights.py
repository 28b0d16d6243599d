"""`pointsman weights`: learns from recorded choices which weights would have had the least regret."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import orjson
from rich.console import Console
from rich.table import Table

from pointsman_cli.words import CommandError
from pointsman_contracts.money import NANOS, nanos
from pointsman_core.choice_regret import LEAST, LearntChoice, learn_weights, read_outcomes
from pointsman_core.request_events import Event, read


def show_weights(files: Sequence[Path], second: float, quality: float, console: Console) -> None:
    """Print what was learnt. CommandError for files that can't be read, and for too few choices."""
    outcomes = read_outcomes(_events(files))
    learnt = learn_weights(outcomes, nanos(second), nanos(quality))
    if learnt is None:
        raise CommandError(
            f"{len(outcomes)} joint choices ended well; at least {2 * LEAST} are needed.",
            "Record more with `pointsman watch --json > events.jsonl`, with a selector that has `joint`.",
        )
    _print(learnt, console)


def _events(files: Iterable[Path]) -> Iterator[Event]:
    for file in files:
        try:
            with file.open("rb") as lines:
                for line in lines:
                    event = _event(line)
                    if event is not None:
                        yield event
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}.", "Write `pointsman watch --json > FILE` first.") from error


def _event(line: bytes) -> Event | None:
    """The event on a line; None for any other line."""
    try:
        document = cast("object", orjson.loads(line))
    except orjson.JSONDecodeError:
        return None
    kind = cast("dict[str, object]", document).get("type") if isinstance(document, dict) else None
    return read(kind, line) if isinstance(kind, str) else None


def _print(learnt: LearntChoice, console: Console) -> None:
    table = Table("model", "requests", "mean regret", box=None, header_style="bold")
    for model, (count, regret) in learnt.by_model.items():
        table.add_row(model, f"{count:,}", _dollars(regret))
    console.print(table)
    weights = learnt.weights
    console.print(f"Regret of a request as it was decided: {_dollars(learnt.regret)}, mean of {learnt.judged:,}.")
    if learnt.learnt_regret >= learnt.regret:
        console.print("No weights would have had less on requests that they weren't learnt from: keep yours.")
        return
    console.print(f"With these weights, which were learnt from other requests: {_dollars(learnt.learnt_regret)}.")
    for (chosen, other), count in sorted(learnt.moved.items(), key=lambda each: -each[1]):
        console.print(f"  {count:,} requests of {chosen} would have gone to {other}")
    text = f"time: {weights.time / 10:g}, money: {weights.money / 10:g}, quality: {weights.quality / 10:g}"
    console.print(f"joint: {{weights: {{{text}}}}}", markup=False, highlight=False)


def _dollars(amount: float) -> str:
    return f"${amount / NANOS:.6f}"
