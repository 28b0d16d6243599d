"""`pointsman engines`: the options of its commands."""

from typing import Annotated

import typer

from pointsman_cli.command_line import NatsOption, console, run, secret, succeed

engines_app = typer.Typer(no_args_is_help=True, help="Add engines to a running gateway, drain and remove them.")

EngineArgument = Annotated[str, typer.Argument(metavar="URL", help="E.g. http://10.0.0.7:8000.")]


@engines_app.command("add")
def add(
    engine: EngineArgument,
    pool: Annotated[
        str | None, typer.Option(help="Its pool; default: the one with most of its models, else a new one.")
    ] = None,
    engine_key: Annotated[
        str | None, typer.Option("--engine-key", metavar="env:NAME", help="Variable with the key that it asks for.")
    ] = None,
    nats: NatsOption = None,
) -> None:
    """List an engine in the stored configuration and wait until it serves. Status 1 when it doesn't within 10 s.

    The file that the configuration came from stays as it is: add the engine there too, or the next `config apply` of
    it removes the engine again."""
    from pointsman_cli.engines import engine_commands

    succeed(engine_commands.add(nats, engine, pool, secret(engine_key), console()))


@engines_app.command("remove")
def remove(engine: EngineArgument, nats: NatsOption = None) -> None:
    """Take an engine out of the stored configuration. It gets no new requests and ends those that it has. Status 1 when
    it still gets some after 10 s."""
    from pointsman_cli.engines import engine_commands

    succeed(engine_commands.remove(nats, engine, console()))


WithinOption = Annotated[
    str, typer.Option(help="What the engine has may end within this time; the rest moves to other engines then.")
]
PoolOption = Annotated[str, typer.Option(help="Its pool, where engines of several pools have the name.")]


@engines_app.command("drain")
def drain(
    engine: EngineArgument,
    within: WithinOption = "30s",
    pool: PoolOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also the last engine that serves a model: requests for it get 503.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return once the engine has no requests left.")] = True,
    nats: NatsOption = None,
) -> None:
    """Take an engine out of service without losing a stream, e.g. to upgrade it. Its name in the pool does, too.

    New requests go elsewhere at once. Status 1 when it still has requests 15 s after the time is over: those that no
    other engine can continue."""
    from pointsman_cli.engines import draining
    from pointsman_contracts.draining import DrainQuery

    query = DrainQuery(
        engine=engine, pool=pool, within_ms=draining.read_within(within), force=force, why="ordered by an operator"
    )
    succeed(draining.drain(nats, query, console(), wait=wait))


@engines_app.command("undrain")
def undrain(engine: EngineArgument, pool: PoolOption = "", nats: NatsOption = None) -> None:
    """Have an engine take requests again that was ordered to drain. One that restarts does so by itself. Status 1 when
    it doesn't within 10 s."""
    from pointsman_cli.engines import draining
    from pointsman_contracts.draining import DrainQuery

    query = DrainQuery(engine=engine, pool=pool, undo=True, why="ordered by an operator")
    succeed(draining.undrain(nats, query, console()))


@engines_app.command("list")
def table(nats: NatsOption = None) -> None:
    """Show every engine with its pool, state, models and load, as the metrics-collectors see it."""
    from pointsman_cli.engines import engine_commands

    run(engine_commands.table(nats, console()))
