"""`pointsman keys`: the options of its commands."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from pointsman_cli.command_line import NatsOption, console, run

keys_app = typer.Typer(no_args_is_help=True, help="Make and revoke the API keys of clients.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The key's name.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a key, for programs.")]


@keys_app.command("create")
def create(
    tenant: Annotated[str, typer.Option(help="The tenant of the key.")],
    name: Annotated[str, typer.Option(help="The key's name, in trails, logs and sums; default: one is made.")] = "",
    subject: Annotated[str, typer.Option(help="The user within the tenant; default: the key's name.")] = "",
    plan: Annotated[str, typer.Option(help="The tenant's plan.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="A scope of the key; repeatable.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model that the key may use, a pattern, `group:NAME` or `alias:NAME`; repeatable. Default: all."
        ),
    ] = None,
    priority: Annotated[
        int, typer.Option(min=0, max=1000, help="The highest priority that its requests may hint at.")
    ] = 0,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Value for a limit whose `claim` has this name; repeatable."),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A part of its service level, e.g. ttft=800ms; repeatable."),
    ] = None,
    budget: Annotated[str | None, typer.Option(metavar="AMOUNT", help="E.g. 50/month, 5/d: dollars.")] = None,
    expires: Annotated[str | None, typer.Option(metavar="WHEN", help="E.g. 90d, 2027-01-01. Default: never.")] = None,
    note: Annotated[str, typer.Option(help="A note for operators.")] = "",
    nats: NatsOption = None,
) -> None:
    """Make an API key, shown this once; preprocessors with `stored: true` know it at once."""
    from pointsman_cli.keys import api_keys, key_commands
    from pointsman_contracts.api_key import ApiKey

    now = datetime.now(UTC)
    record = ApiKey(
        id=api_keys.named(name),
        tenant=tenant,
        subject=subject,
        plan=plan,
        scopes=tuple(scope or ()),
        models=tuple(model) if model else None,
        priority=priority,
        limits=api_keys.limits(limit or (), budget),
        slo=api_keys.service_level(slo or ()),
        expires_ms=api_keys.expiry_ms(expires, now),
        note=note,
        created_ms=round(now.timestamp() * 1000),
    )
    run(key_commands.create(nats, record, console()))


@keys_app.command("list")
def show_all(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the stored keys, without their hashes."""
    from pointsman_cli.keys import key_commands

    run(key_commands.show_all(nats, tenant, console(), as_json=as_json))


@keys_app.command("show")
def show(name: NameArgument, nats: NatsOption = None, as_json: JsonOption = False) -> None:
    """Show a key's permissions and limits."""
    from pointsman_cli.keys import key_commands

    run(key_commands.show(nats, name, console(), as_json=as_json))


@keys_app.command("revoke")
def revoke(name: NameArgument, nats: NatsOption = None) -> None:
    """Take a key back; it is refused from then on."""
    from pointsman_cli.keys import key_commands

    run(key_commands.revoke(nats, name, console()))
