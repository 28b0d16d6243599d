"""`pointsman keys`: make, list, show and revoke the API keys that the bus holds."""

import sys
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from pointsman_cli.config import stored_configuration
from pointsman_cli.keys import api_keys, stored_keys
from pointsman_cli.words import counted
from pointsman_contracts.api_key import ApiKey
from pointsman_core.config import ConfigError
from pointsman_runtime.configuring.config_text import parse


async def create(url: str | None, record: ApiKey, console: Console) -> None:
    """Print a new key, this once. CommandError for a name that is taken."""
    key, digest, _ = api_keys.made(record)
    async with stored_keys.opened(url) as keys:
        await keys.store_key(digest, record)
    sys.stdout.write(f"{key}\n")
    console.print(
        Text(f"Key {record.id} of {record.tenant}. It is shown this once; the gateway keeps its hash.", "dim")
    )
    for warning in await _ignored(url, record):
        console.print(Text(warning, "yellow"))


async def show_all(url: str | None, tenant: str | None, console: Console, *, as_json: bool) -> None:
    """List the keys, without their hashes."""
    async with stored_keys.opened(url) as keys:
        records = [each for each in (await keys.list_keys()).values() if tenant in (None, each.tenant)]
    if as_json:
        for record in sorted(records, key=lambda each: (each.tenant, each.id)):
            console.print(record.encode().decode(), soft_wrap=True, markup=False)
        return
    console.print(api_keys.table(records, datetime.now(UTC)) if records else "No keys are stored.")


async def show(url: str | None, name: str, console: Console, *, as_json: bool) -> None:
    """Show the keys of a name. CommandError without any."""
    async with stored_keys.opened(url) as keys:
        records = list((await keys.find_by_name(name)).values())
    for record in records:
        if as_json:
            console.print(record.encode().decode(), soft_wrap=True, markup=False)
        else:
            console.print(api_keys.facts(record, datetime.now(UTC)))


async def revoke(url: str | None, name: str, console: Console) -> None:
    """Take keys back: they are refused from then on. CommandError without any of this name."""
    async with stored_keys.opened(url) as keys:
        count = await keys.revoke_keys(name)
    console.print(f"revoked {counted(count, 'key')} called {name}")


async def _ignored(url: str | None, record: ApiKey) -> list[str]:
    """The settings of a key that the current configuration doesn't read."""
    async with stored_configuration.opened(url) as store:
        revisions = await store.list_revisions()
    if not revisions:
        return []
    try:
        uses = parse(revisions[-1].text).preprocessing
    except ConfigError:
        return ["This version can't read the current configuration: whether that accepts stored keys is unknown."]
    found: list[str] = []
    if not any(use.use == "api-key-auth" and use.spec.params.get("stored") for use in uses):
        found.append(
            "The configuration doesn't accept stored keys: add {use: api-key-auth, stored: true} to preprocessing."
        )
    claims = {use.spec.params.get("claim") for use in uses}
    for name in record.limits:
        if name not in claims:
            example = "{use: budget, per: [key], claim: budget}" if name == api_keys.BUDGET else f"claim: {name}"
            found.append(f"No limit of the configuration reads {name!r} of a key: e.g. {example}.")
    return found
