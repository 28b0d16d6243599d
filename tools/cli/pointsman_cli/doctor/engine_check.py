"""`pointsman doctor --engine`: a table of the features that the gateway uses or passes on, and which of them a running
engine has."""

from typing import Final

import aiohttp
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pointsman_cli.engines import engines
from pointsman_cli.tables import folding, unbroken
from pointsman_cli.words import counted
from pointsman_engines.probes.features import FEATURES, FeatureResult, Outcome, find, probed

WIDTH: Final = 80
_NOTE: Final = 120
"""Characters of a note; an engine's own words may be many."""

_STYLES: Final = {Outcome.SUPPORTED: "green", Outcome.MISSING: "yellow", Outcome.DIFFERENT: "red"}


async def check(url: str, model: str | None, api_key: str | None, console: Console) -> bool:
    """Print the table; False when something differs from what the gateway expects."""
    async with aiohttp.ClientSession() as http:
        served = await engines.ask_models(engines.base(url), http, api_key)
        engine = await probed(served.url, model or served.models[0], http, api_key)
        found = [await find(engine, feature) for feature in FEATURES]
    kind = engine.dialect.engine if engine.dialect is not None else "engine of a kind that is unknown"
    console.print(Text(f"{kind} at {served.url}, model {engine.model}", "bold"), soft_wrap=True)
    console.print(_table(found), width=WIDTH)
    counts = {outcome: sum(finding.outcome is outcome for finding in found) for outcome in Outcome}
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    console.print(Text(f"{counted(len(found), 'feature')}: {words}", "bold"))
    return not counts[Outcome.DIFFERENT]


def _table(found: list[FeatureResult]) -> Table:
    table = Table(*unbroken("feature", "result"), *folding("note"), box=None, pad_edge=False)
    for finding in found:
        table.add_row(finding.title, Text(finding.outcome, _STYLES[finding.outcome]), Text(finding.note[:_NOTE], "dim"))
    return table
