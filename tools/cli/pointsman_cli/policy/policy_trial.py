"""`pointsman policy test`: what each stage would do to a request."""

import asyncio
import json
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from pointsman_cli.config import configuration
from pointsman_cli.policy.policy_walk import Walk, walk
from pointsman_cli.sample_request import SampleRequest
from pointsman_cli.tables import borderless, numbers, unbroken
from pointsman_contracts.message import fields_of

_STYLES: Final = {"rejected": "bold red", "off": "dim", "not reached": "dim", "bus": "dim", "skipped": "yellow"}
_WORDS: Final = {"bus": "needs the gateway"}


def trial(file: Path, sample: SampleRequest, console: Console, *, trusted: bool, as_json: bool) -> bool:
    """Print the way of the request; False when it is refused on it. CommandError for a wrong configuration."""
    document = configuration.checked(configuration.read(file), str(file))
    found = asyncio.run(walk(document.config, sample, trusted=trusted))
    if as_json:
        console.print_json(json.dumps(_document(found)))
    else:
        _print(found, console)
    return found.refusal is None


def _print(found: Walk, console: Console) -> None:
    table = borderless(*unbroken("stage", "mode", "verdict"), *numbers("ms"), "why")
    for row in found.rows:
        took = "" if row.took_ms is None else f"{row.took_ms:.2f}"
        style = _STYLES.get(row.outcome, "magenta" if row.outcome.startswith("shadow_") else "")
        table.add_row(row.stage, row.mode, Text(_WORDS.get(row.outcome, row.outcome), style), took, Text(row.note))
    console.print(table)
    if found.identity is not None:
        named = {name: value for name, value in found.identity.items() if value not in ("", [])}
        console.print(Text(f"identity: {json.dumps(named)}"), soft_wrap=True)
    if found.refusal is not None:
        console.print(Text(f"refused: {found.refusal.status} {found.refusal.message}", "red"), soft_wrap=True)
    elif found.target is not None:
        console.print(Text(f"would be served by {found.target.model}", "green"))


def _document(found: Walk) -> dict[str, object]:
    return {
        "stages": [row._asdict() for row in found.rows],
        "identity": found.identity,
        "refused": None
        if found.refusal is None
        else {"status": found.refusal.status, "code": found.refusal.code, "message": found.refusal.message},
        "target": None if found.target is None else fields_of(found.target),
    }
