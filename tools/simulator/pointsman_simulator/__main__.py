"""The `pointsman-simulator` command."""

import argparse
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Final

from pointsman_simulator import faults
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fixed import FixedConfig, run_fixed
from pointsman_simulator.inference import ModelConfig
from pointsman_simulator.server import ServerConfig, SimulatedEngine, run_server
from pointsman_simulator.timing import Timing

_MODEL: Final = "simulated-model"
"""The model that is served when none is named."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pointsman-simulator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_serve(commands.add_parser("serve", help="an engine behind HTTP, in real time"))
    _add_fixed(commands.add_parser("fixed", help="answers fixed bytes at once, for overhead benchmarks"))
    options = parser.parse_args(arguments)
    if options.command == "fixed":
        return _run(_fixed(options, options.model))
    named: list[str] = options.model or [_MODEL]
    models = tuple(dict.fromkeys(named))
    if options.instant:
        if len(models) > 1:
            parser.error("--instant answers for one --model")
        return _run(_fixed(options, named[0]))
    try:
        config = _server_config(options, models)
    except ValueError as error:
        parser.error(str(error))
    return _run(_serve(options, config))


def _add_listening(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free port")
    parser.add_argument("--port-file", type=Path, help="write the chosen port here once it listens")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    engine, model = EngineConfig(), ModelConfig((_MODEL,))
    _add_listening(parser)
    parser.add_argument("--model", action="append", metavar="NAME", help=f"a base model; repeatable ({_MODEL})")
    parser.add_argument("--name", default="", help="sent back in the header x-simulated-engine")
    parser.add_argument("--lora", action="append", default=[], metavar="NAME", help="an adapter; repeatable")
    parser.add_argument("--max-loras", type=int, default=engine.max_loras)
    parser.add_argument("--lora-load-ms", type=float, default=engine.lora_load_ms)
    parser.add_argument("--blocks", type=int, default=engine.num_blocks, help="KV blocks (%(default)s)")
    parser.add_argument(
        "--host-blocks", type=int, default=0, help="evicted blocks that host memory keeps (%(default)s)"
    )
    parser.add_argument(
        "--fetch-token-ms", type=float, default=engine.fetch_token_ms, help="to fetch a token from there (%(default)s)"
    )
    parser.add_argument("--block-size", type=int, default=engine.block_size, help="tokens (%(default)s)")
    parser.add_argument("--max-num-seqs", type=int, default=engine.max_num_seqs)
    parser.add_argument("--max-num-batched-tokens", type=int, default=engine.max_num_batched_tokens)
    parser.add_argument("--max-model-len", type=int, default=model.max_model_len)
    parser.add_argument("--mean-output-tokens", type=float, default=model.mean_output_tokens)
    parser.add_argument("--speedup", type=float, default=1.0, help="divides every pass time (%(default)s)")
    parser.add_argument(
        "--data-parallel-size", type=int, default=1, metavar="RANKS",
        help="ranks of this server, each with the batch and the cache that the other options say (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--api-key", help="ask for this bearer token on /v1")
    parser.add_argument("--fault", action="append", default=[], metavar="FAULT", help=faults.HELP)
    parser.add_argument("--admin-port", type=int, help="tests only: change faults at run time here; 0: any")
    parser.add_argument("--admin-port-file", type=Path, help="write the chosen admin port here")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FOLDER", help="tokenize with this instead of 4 bytes a token"
    )
    parser.add_argument(
        "--kv-events",
        metavar="ENDPOINT",
        help="publish KV events here, e.g. tcp://127.0.0.1:*; each rank has the port after the last one's",
    )
    parser.add_argument("--kv-replay", metavar="ENDPOINT", help="and send them again here on request")
    parser.add_argument("--kv-file", type=Path, help="write both endpoints here, a line each")
    parser.add_argument(
        "--enable-sleep-mode", action="store_true", help="has /sleep, /wake_up and /is_sleeping, as vLLM"
    )
    parser.add_argument("--wake-s", type=float, default=0.0, help="to wake up (%(default)s)")
    parser.add_argument("--drain-s", type=float, default=ServerConfig(model).drain_s)
    parser.add_argument("--instant", action="store_true", help="the same as the command `fixed`")
    parser.add_argument("--tokens", type=int, default=16, help="with --instant: tokens of an answer")
    parser.add_argument("--interval-ms", type=float, default=0.0, help="with --instant: between events")


def _add_fixed(parser: argparse.ArgumentParser) -> None:
    _add_listening(parser)
    parser.add_argument("--model", default=_MODEL)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of an answer (%(default)s)")
    parser.add_argument("--interval-ms", type=float, default=0.0, help="between stream events (%(default)s)")


def _server_config(options: argparse.Namespace, models: tuple[str, ...]) -> ServerConfig:
    for name in (
        "blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_loras", "speedup", "data_parallel_size"
    ):  # fmt: skip
        if getattr(options, name) <= 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0")
    if options.mean_output_tokens <= 16:
        raise ValueError("--mean-output-tokens must be above 16")
    if options.kv_events is not None and len(models) > 1:
        raise ValueError("--kv-events needs exactly one --model: an event doesn't name the base model of its blocks")
    if options.kv_events is not None and options.data_parallel_size > 1 and not options.kv_events.startswith("tcp://"):
        raise ValueError("--kv-events of several ranks must begin with tcp://: each has the port after the last one's")
    engine = EngineConfig(
        num_blocks=options.blocks,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_loras=options.max_loras,
        lora_load_ms=options.lora_load_ms,
        host_blocks=options.host_blocks,
        fetch_token_ms=options.fetch_token_ms,
        timing=Timing(speedup=options.speedup),
    )
    model = ModelConfig(
        models=models,
        loras=tuple(options.lora),
        max_model_len=min(options.max_model_len, options.blocks * options.block_size),
        mean_output_tokens=options.mean_output_tokens,
    )
    return ServerConfig(
        model=model,
        engine=engine,
        ranks=options.data_parallel_size,
        host=options.host,
        port=options.port,
        name=options.name,
        api_key=options.api_key,
        faults=tuple(faults.parse_fault(text) for text in options.fault),
        admin_port=options.admin_port,
        drain_s=options.drain_s,
        tokenizer=options.tokenizer,
        kv_events=options.kv_events,
        kv_replay=options.kv_replay,
        sleep_mode=options.enable_sleep_mode,
        wake_s=options.wake_s,
    )


async def _serve(options: argparse.Namespace, config: ServerConfig) -> None:
    def announce(engine: SimulatedEngine) -> None:
        if engine.admin_port is not None:
            _write_port(options.admin_port_file, engine.admin_port)
            print(f"admin on http://{config.host}:{engine.admin_port}", flush=True)
        if engine.publishers:
            first = engine.publishers[0]
            _write(options.kv_file, f"{first.live}\n{first.replay or ''}\n")
        _write_port(options.port_file, engine.port)
        print(f"ready on http://{config.host}:{engine.port}", flush=True)

    await run_server(config, announce)


async def _fixed(options: argparse.Namespace, model: str) -> None:
    config = FixedConfig(model, options.host, options.port, options.tokens, options.interval_ms)

    def announce(host: str, port: int) -> None:
        _write_port(options.port_file, port)
        print(f"ready on http://{host}:{port}", flush=True)

    await run_fixed(config, announce)


def _write_port(path: Path | None, port: int) -> None:
    _write(path, f"{port}\n")


def _write(path: Path | None, text: str) -> None:
    """Written in one step, so that a reader never sees half a file."""
    if path is not None:
        draft = path.with_name(path.name + ".new")
        draft.write_text(text)
        draft.replace(path)


def _run(work: Coroutine[None, None, None]) -> int:
    import uvloop

    uvloop.run(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
