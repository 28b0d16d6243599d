"""`pointsman simulate`: the options."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from pointsman_cli.words import CommandError
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags
from pointsman_simulator.timing import Timing

_ENGINE: Final = EngineConfig()
_LAGS: Final = Lags()
_ONLY_WITH_LOG: Final = ("pool", "arrivals", "bursts", "engines", "speed")
_NOT_WITH_LOG: Final = (
    *(
        "trace",
        "workload",
        "closed_loop",
        "limit",
        "scale",
        "requests",
        "rate",
        "batch",
        "workers",
        "ranks",
        "blocks",
        "block_size",
        "speedup",
    ),
    *("max_num_batched_tokens", "max_num_seqs", "max_loras", "lora_load_ms", "host_blocks", "fetch_token_ms"),
    *("response_lag_ms", "kv_lag_ms", "load_age_ms", "dispatch_lag_ms", "peer_lag_ms", "schedulers", "speeds"),
)
_NOT_WITH_BATCH: Final = ("closed_loop", "ranks", "schedulers", "out")


def _policies(incomplete: str) -> list[str]:
    from pointsman_simulator.comparison import ONE_TIER, POLICIES, SESSION_POLICIES

    return [name for name in (*POLICIES, *SESSION_POLICIES, ONE_TIER) if name.startswith(incomplete)]


def _workloads(incomplete: str) -> list[str]:
    from pointsman_simulator.workloads import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


def _above_0(value: float) -> float:
    if value <= 0:
        raise typer.BadParameter(f"{value:g} isn't above 0.")
    return value


def _speeds(text: str | None) -> tuple[float, ...]:
    """CommandError for anything but numbers above 0."""
    try:
        speeds = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        speeds = (0.0,)
    if any(not speed > 0 for speed in speeds):
        raise CommandError(f"--speeds {text} isn't a list of numbers above 0.", "For example: --speeds 0.6,1,1,1.4")
    return speeds


def _refuse(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Raise CommandError for the first of these options that was given."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise CommandError(f"--{name.replace('_', '-')} {why}.", "The options: pointsman simulate --help")


_FOR_WORKLOAD: Final = partial(typer.Option, rich_help_panel="Workload")
_FOR_TWIN: Final = partial(typer.Option, rich_help_panel="Twin of a flight log")
_FOR_POLICIES: Final = partial(typer.Option, rich_help_panel="Policies")
_FOR_ENGINES: Final = partial(typer.Option, rich_help_panel="Engines")
_FOR_DELAYS: Final = partial(typer.Option, rich_help_panel="Delays")
_FOR_OUTPUT: Final = partial(typer.Option, rich_help_panel="Output")


def simulate(
    context: typer.Context,
    trace: Annotated[
        Path | None, _FOR_WORKLOAD(metavar="FILE", help="A trace in Mooncake's form: .jsonl, .jsonl.xz or .jsonl.gz.")
    ] = None,
    workload: Annotated[
        str | None,
        _FOR_WORKLOAD(
            metavar="NAME",
            help="A synthetic one: chat, system-prompts, rag, agents, adapters, bursts, coding-agents.",
            autocompletion=_workloads,
        ),
    ] = None,
    closed_loop: Annotated[
        bool,
        _FOR_WORKLOAD("--closed-loop", help="A request of the trace arrives when its `parent` has ended, and its gap."),
    ] = False,
    limit: Annotated[
        int | None, _FOR_WORKLOAD(metavar="N", min=1, help="Only the first requests of the trace.")
    ] = None,
    scale: Annotated[
        float, _FOR_WORKLOAD(metavar="X", callback=_above_0, help="Speed of the trace's arrivals: 2 halves the gaps.")
    ] = 1.0,
    requests: Annotated[int, _FOR_WORKLOAD(metavar="N", min=1, help="Number of synthetic requests.")] = 4000,
    rate: Annotated[float, _FOR_WORKLOAD(metavar="X", callback=_above_0, help="Synthetic requests per second.")] = 4.0,
    batch: Annotated[
        str | None,
        _FOR_WORKLOAD(
            metavar="TOKENS,TOKENS",
            help="An endless batch behind the workload, of prompts and answers of so many tokens, e.g. 512,128: says "
            "what the idle capacity holds, under the gateway's rule and two others.",
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        _FOR_TWIN(
            "--from",
            metavar="LOG",
            help="A flight log: segments or folders; repeatable. Fits engines to it, and says whether to trust them.",
        ),
    ] = None,
    pool: Annotated[str | None, _FOR_TWIN(metavar="NAME", help="The pool; default: the only one.")] = None,
    arrivals: Annotated[
        float, _FOR_TWIN(metavar="X", callback=_above_0, help="What if: X times as many requests/s.")
    ] = 1.0,
    bursts: Annotated[
        float, _FOR_TWIN(metavar="X", callback=_above_0, help="What if: each minute's requests came in 60/X seconds.")
    ] = 1.0,
    engines: Annotated[int, _FOR_TWIN(metavar="+N|-N", help="What if: more engines, or fewer.")] = 0,
    speed: Annotated[
        list[str] | None,
        _FOR_TWIN(metavar="NAME=X", help="What if: an engine, or all of a model, were X times as fast; repeatable."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        _FOR_POLICIES(
            metavar="NAME",
            autocompletion=_policies,
            help="Repeatable; default: all. pointsman, round-robin, least-requests, power-of-two, gie, dynamo, "
            "dynamo-scale-2; of sessions session-hash, llm-d-precise, llm-d-session; with --config FILE:NAME, with "
            "--from recorded.",
        ),
    ] = None,
    config: Annotated[
        Path | None, _FOR_POLICIES(metavar="FILE", help="Compare the scheduling policies of this configuration too.")
    ] = None,
    seeds: Annotated[
        int | None,
        _FOR_POLICIES(metavar="N", min=1, help="Runs of each policy, with other ties; default: 1, with --from 3."),
    ] = None,
    schedulers: Annotated[
        int, _FOR_POLICIES(metavar="N", min=1, help="Schedulers that share the requests of pointsman.")
    ] = 1,
    workers: Annotated[int, _FOR_ENGINES(metavar="N", min=1, help="Number of engines.")] = 4,
    ranks: Annotated[
        int,
        _FOR_ENGINES(metavar="N", min=1, help="Data-parallel ranks of an engine; each has a cache of its own."),
    ] = 1,
    speeds: Annotated[
        str | None, _FOR_ENGINES(metavar="X,X,…", help="Speed factor of each engine, e.g. 0.6,1,1,1.4.")
    ] = None,
    blocks: Annotated[int, _FOR_ENGINES(metavar="N", min=1, help="KV blocks of an engine.")] = _ENGINE.num_blocks,
    block_size: Annotated[int, _FOR_ENGINES(metavar="N", min=1, help="Tokens of a KV block.")] = _ENGINE.block_size,
    max_num_batched_tokens: Annotated[
        int, _FOR_ENGINES(metavar="N", min=1, help="Tokens of a pass.")
    ] = _ENGINE.max_num_batched_tokens,
    max_num_seqs: Annotated[int, _FOR_ENGINES(metavar="N", min=1, help="Sequences of a pass.")] = _ENGINE.max_num_seqs,
    max_loras: Annotated[int, _FOR_ENGINES(metavar="N", min=1, help="Adapters of a pass.")] = _ENGINE.max_loras,
    lora_load_ms: Annotated[
        float, _FOR_ENGINES(metavar="MS", min=0, help="Time to load an adapter.")
    ] = _ENGINE.lora_load_ms,
    host_blocks: Annotated[
        int, _FOR_ENGINES(metavar="N", min=0, help="Evicted KV blocks that an engine's host memory keeps.")
    ] = _ENGINE.host_blocks,
    fetch_token_ms: Annotated[
        float, _FOR_ENGINES(metavar="MS", min=0, help="Time to fetch a token from there.")
    ] = _ENGINE.fetch_token_ms,
    speedup: Annotated[float, _FOR_ENGINES(metavar="X", callback=_above_0, help="Divides every pass time.")] = 1.0,
    response_lag_ms: Annotated[
        float, _FOR_DELAYS(metavar="MS", min=0, help="Until a first or last token is known.")
    ] = _LAGS.response,
    kv_lag_ms: Annotated[
        float, _FOR_DELAYS(metavar="MS", min=0, help="Until a change of a KV cache is known.")
    ] = _LAGS.kv,
    load_age_ms: Annotated[float, _FOR_DELAYS(metavar="MS", min=0, help="Age of load reports.")] = _LAGS.load,
    dispatch_lag_ms: Annotated[
        float, _FOR_DELAYS(metavar="MS", min=0, help="From a decision to its engine.")
    ] = _LAGS.dispatch,
    peer_lag_ms: Annotated[
        float, _FOR_DELAYS(metavar="MS", min=0, help="From a scheduler to the other schedulers.")
    ] = _LAGS.peer,
    processes: Annotated[
        int, _FOR_OUTPUT(metavar="N", min=1, help="Number of runs at a time.", show_default="the cores")
    ] = os.cpu_count() or 1,
    out: Annotated[
        Path | None, _FOR_OUTPUT(metavar="FOLDER", help="Save results.json, results.md and results.png here.")
    ] = None,
) -> None:
    """Compare routing policies in virtual time: on a trace, a synthetic workload, or the twin of a flight log.

    With --from: status 1 when the twin isn't to be trusted."""
    from pointsman_cli.command_line import console

    if log:
        from pointsman_cli.flight.twin import TwinOptions
        from pointsman_cli.flight.twin import twin as run_twin

        _refuse(context, _NOT_WITH_LOG, "is the log's with --from")
        options = TwinOptions(
            log=tuple(log),
            pool=pool,
            arrivals=arrivals,
            bursts=bursts,
            engines=engines,
            speeds=tuple(speed or ()),
            policies=tuple(policy or ()),
            config=config,
            seeds=seeds or 3,
            processes=processes,
            out=out,
        )
        if not run_twin(options, console()):
            raise typer.Exit(1)
        return
    from pointsman_cli.flight.simulate import simulate as run
    from pointsman_simulator.replay import ReplayOptions

    _refuse(context, _ONLY_WITH_LOG, "is only for --from")
    asked = ReplayOptions(
        trace=trace,
        workload=workload,
        closed_loop=closed_loop,
        limit=limit,
        scale=scale,
        requests=requests,
        rate=rate,
        workers=workers,
        ranks=ranks,
        policies=tuple(policy or ()),
        config=config,
        seeds=seeds or 1,
        engine=EngineConfig(
            num_blocks=blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_loras=max_loras,
            lora_load_ms=lora_load_ms,
            host_blocks=host_blocks,
            fetch_token_ms=fetch_token_ms,
            timing=Timing(speedup=speedup),
        ),
        lags=Lags(response_lag_ms, kv_lag_ms, load_age_ms, dispatch_lag_ms, peer_lag_ms),
        schedulers=schedulers,
        speeds=_speeds(speeds),
        processes=processes,
        out=out,
    )
    if batch is None:
        run(asked, console())
        return
    from pointsman_cli.flight.simulate_batch import parse_load, simulate_batch

    _refuse(context, _NOT_WITH_BATCH, "isn't for --batch")
    simulate_batch(asked, parse_load(batch))
