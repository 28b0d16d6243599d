"""The commands and their options. Each command loads the module that implements it when it runs."""

import importlib.metadata
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pointsman_cli.batch.batch_app import batch_app
from pointsman_cli.command_line import NatsOption, print_error, secret
from pointsman_cli.command_line import console as _console
from pointsman_cli.command_line import run as _run
from pointsman_cli.command_line import succeed as _succeed
from pointsman_cli.config.config_app import config_app
from pointsman_cli.engines.engine_app import engines_app
from pointsman_cli.explain.explain_app import explain
from pointsman_cli.explain.levels_app import levels
from pointsman_cli.explain.mirrors_app import mirrors
from pointsman_cli.explain.sessions_app import sessions
from pointsman_cli.flight.regret_app import regret
from pointsman_cli.flight.replay_app import replay
from pointsman_cli.flight.simulate_app import simulate
from pointsman_cli.flight.weights_app import weights
from pointsman_cli.importing.import_app import import_app
from pointsman_cli.keys.key_app import keys_app
from pointsman_cli.keys.nats_app import nats_app
from pointsman_cli.words import CommandError

app = typer.Typer(
    name="pointsman",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(batch_app, name="batch")
app.add_typer(config_app, name="config")
policy_app = typer.Typer(no_args_is_help=True, help="Try what the policy does with a request.")
app.add_typer(policy_app, name="policy")
cache_app = typer.Typer(no_args_is_help=True, help="Delete cached answers.")
app.add_typer(cache_app, name="cache")
app.add_typer(engines_app, name="engines")
app.add_typer(keys_app, name="keys")
app.add_typer(import_app, name="import")
app.add_typer(nats_app, name="nats")

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Configuration; the engines of --engine join its pools. "
        "Default: pointsman.yaml here; with --engine, one made for the engines.",
    ),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="URL", help="A running engine; repeatable. Default: simulated engines."),
]
EngineKeyOption = Annotated[
    str | None, typer.Option("--engine-key", metavar="env:NAME", help="Variable with the key that engines ask for.")
]
SimulatedOption = Annotated[int, typer.Option("--simulated", min=1, max=64, help="Number of simulated engines.")]
SpeedupOption = Annotated[float, typer.Option("--speedup", min=0.1, max=100, help="Speed of the simulated engines.")]
ReplicasOption = Annotated[
    list[str] | None, typer.Option("--replicas", metavar="SERVICE=N", help="E.g. scheduler=2, recorder=0; repeatable.")
]

SeparateOption = Annotated[
    bool, typer.Option("--separate", help="Run each service as a process of its own instead of bundled in one.")
]

ConsoleOption = Annotated[
    bool, typer.Option("--console/--no-console", help="Run the console beside the gateway, for a browser.")
]


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"pointsman {importlib.metadata.version('pointsman-cli')}\n")
        raise typer.Exit


@app.callback()
def pointsman(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decides which model and which engine serves each LLM request."""
    del version


@app.command()
def up(
    config: ConfigOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port that takes requests; 0: a free one.")] = 8080,
    nats: Annotated[
        str | None, typer.Option("--nats", metavar="URL", help="A running NATS server; default: start one.")
    ] = None,
    nats_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the NATS server that it starts; 0: a free one.")
    ] = 4222,
    engine: EngineOption = None,
    engine_key: EngineKeyOption = None,
    engine_ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Authorities of the certificates of engines at https:// URLs."),
    ] = None,
    engine_server_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name in these certificates, if it isn't the URL's host.")
    ] = None,
    simulated: SimulatedOption = 3,
    speedup: SpeedupOption = 1.0,
    replicas: ReplicasOption = None,
    separate: SeparateOption = False,
    envoy: Annotated[
        bool, typer.Option("--envoy", help="Take requests with Envoy, in front of an epp-adapter.")
    ] = False,
    with_console: ConsoleOption = True,
    console_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the console; default: 8090, or a free one.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port of the first process's metrics; others take the next ones. Default: 9100."
        ),
    ] = None,
    run_dir: Annotated[Path, typer.Option(help="Logs and the server's store.")] = Path("run/up"),
) -> None:
    """Run a whole gateway on this machine until Ctrl-C."""
    from pointsman_cli.engines.engines import engine_tls
    from pointsman_cli.stack import plan
    from pointsman_cli.stack.stack import StackOptions
    from pointsman_cli.stack.up import up as run

    options = StackOptions(
        run_dir=run_dir,
        config=config,
        nats=nats,
        nats_port=nats_port,
        port=port,
        engines=tuple(engine or ()),
        engine_key=secret(engine_key),
        engine_tls=engine_tls(engine_ca, engine_server_name),
        simulated=simulated,
        speedup=speedup,
        replicas=plan.replicas(replicas or []),
        separate=separate,
        envoy=envoy,
        console=with_console,
        console_port=console_port,
        metrics_port=metrics_port,
    )
    _run(run(options, _console()))


@app.command()
def demo(
    config: ConfigOption = None,
    engine: EngineOption = None,
    engine_key: EngineKeyOption = None,
    simulated: SimulatedOption = 3,
    speedup: SpeedupOption = 1.0,
    replicas: ReplicasOption = None,
    separate: SeparateOption = False,
    clients: Annotated[int, typer.Option(min=1, max=256, help="Number of clients that send requests.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="Seconds for which they send.")] = 20,
    with_console: ConsoleOption = True,
    run_dir: Annotated[Path, typer.Option(help="Logs and the server's store.")] = Path("run/demo"),
) -> None:
    """Start a gateway, send mixed traffic, show which engine served what and why, and stop. Status 1 when a request
    failed."""
    from pointsman_cli.demo.demo import demo as run
    from pointsman_cli.stack import plan
    from pointsman_cli.stack.stack import StackOptions

    options = StackOptions(
        run_dir=run_dir,
        config=config,
        engines=tuple(engine or ()),
        engine_key=secret(engine_key),
        simulated=simulated,
        speedup=speedup,
        replicas=plan.replicas(replicas or []),
        separate=separate,
        console=with_console,
    )
    _succeed(run(options, _console(), clients=clients, seconds=seconds))


@app.command()
def watch(
    nats: NatsOption = None,
    pool: Annotated[str | None, typer.Option(help="Only this pool.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Only requests that asked for this model or were served by it.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only requests with this outcome: ok, rejected, client_gone, engine_error, …")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")] = False,
) -> None:
    """Follow decisions and their outcomes on the bus."""
    from pointsman_cli.explain.events import EventSelection
    from pointsman_cli.explain.watch import watch as run

    with suppress(KeyboardInterrupt):  # which is how following ends
        _run(run(nats, EventSelection(pool, model, outcome), _console(), as_json=as_json))


@cache_app.command("purge")
def cache_purge(
    tenant: Annotated[
        str | None, typer.Option(help='Only answers to this tenant; "" is those who have no identity.')
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Only answers in this cache.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every answer.")] = False,
    nats: NatsOption = None,
) -> None:
    """Have every semantic-cache forget answers."""
    from pointsman_cli.cache import purge as run
    from pointsman_contracts.cache import CachePurge

    if not everything and tenant is None and cache is None:
        raise CommandError("whose answers?", "Name a --tenant or a --cache, or write --all.")
    _run(run(nats, CachePurge(tenant=tenant, cache=cache), _console()))


@app.command()
def usage(
    by: Annotated[
        str, typer.Option(help="Group rows by tenant, subject, key, model or day; engine time by pool or engine, too.")
    ] = "tenant,model,day",
    since: Annotated[str | None, typer.Option(metavar="DAY", help="First day (UTC), e.g. 2026-03-01.")] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Last day, included.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    key: Annotated[str | None, typer.Option(help="Only the API key of this name.")] = None,
    nats: NatsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row, for programs.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    of_engines: Annotated[
        bool, typer.Option("--engine-time", help="Sum the time of engines of your own instead, of pools with `cost`.")
    ] = False,
) -> None:
    """Sum requests, tokens and cost of the usage ledger; or the time that engines were at work for them."""
    from pointsman_cli.explain import engine_time
    from pointsman_cli.explain.usage import KEYS, query
    from pointsman_cli.explain.usage import usage as run

    if as_json and as_csv:
        raise CommandError("--json and --csv exclude each other.", "Write one of them.")
    form = "json" if as_json else "csv" if as_csv else "table"
    keys = engine_time.KEYS if of_engines else KEYS
    asked = query(by=by, since=since, until=until, tenant=tenant, model=model, key=key, keys=keys)
    if of_engines:
        _run(engine_time.engine_time(nats, asked, _console(), form))
        return
    _run(run(nats, asked, _console(), form))


app.command()(explain)
app.command()(sessions)
app.command()(levels)
app.command()(mirrors)
app.command()(simulate)
app.command()(regret)
app.command()(weights)
app.command()(replay)


@app.command()
def doctor(
    nats: NatsOption = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="URL", help="Check this engine instead of the gateway.")
    ] = None,
    engine_key: EngineKeyOption = None,
    model: Annotated[
        str | None, typer.Option("--model", help="With --engine: the model to ask; default: the first it serves.")
    ] = None,
) -> None:
    """Check the server, its streams and every service on the bus, and report problems. Status 1 when there is one.

    With --engine: a table of what the engine supports, what it is missing, and what differs from what the gateway
    expects. Status 1 when something differs."""
    if engine is not None:
        from pointsman_cli.doctor import engine_check

        _succeed(engine_check.check(engine, model, secret(engine_key), _console()))
        return
    from pointsman_cli.doctor.doctor import doctor as run

    _succeed(run(nats, _console()))


@policy_app.command("test")
def policy_test(
    request: Annotated[
        Path, typer.Option("--request", help='{"path", "headers", "body"}, or the body alone, as JSON.')
    ],
    config: Annotated[Path, typer.Option("--config", help="The configuration to try.")] = Path("pointsman.yaml"),
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME: VALUE", help="A header beside those of the file; repeatable."),
    ] = None,
    trusted: Annotated[bool, typer.Option("--trusted", help="As if a trusted proxy had sent it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show what each stage would do to a request, without a gateway. Status 1 when it would be refused."""
    from pointsman_cli.policy.policy_trial import trial
    from pointsman_cli.sample_request import read_sample

    if not trial(config, read_sample(request, header or []), _console(), trusted=trusted, as_json=as_json):
        raise typer.Exit(1)


@policy_app.command("key")
def policy_key(
    tenant: Annotated[str, typer.Option(help="The tenant of the key.")],
    name: Annotated[str, typer.Option("--id", help="The key's name, in trails and logs.")] = "",
    plan: Annotated[str, typer.Option(help="The tenant's plan.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="A scope of the key; repeatable.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model that the key may use, a pattern, `group:NAME` or `alias:NAME`; repeatable. Default: all."
        ),
    ] = None,
) -> None:
    """Make an API key for a configuration. Prints the key, shown only this once, and its entry for `api-key-auth`,
    which holds only its hash. `pointsman keys create` makes one that the bus keeps."""
    from pointsman_cli.keys import api_keys
    from pointsman_contracts.api_key import ApiKey

    record = ApiKey(
        id=name, tenant=tenant, plan=plan, scopes=tuple(scope or ()), models=tuple(model) if model else None
    )
    key, _, entry = api_keys.made(record)
    sys.stdout.write(f"{key}\n{entry}\n")


def main() -> None:
    """The console script."""
    try:
        app()
    except CommandError as error:
        print_error(error.problem, error.advice)
        raise SystemExit(1) from None
