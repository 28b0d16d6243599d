"""The replay command: policies side by side on a trace or a synthetic workload."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import yaml

from pointsman_core.config import SchedulingPolicy, load
from pointsman_simulator import report
from pointsman_simulator.comparison import POLICIES, Setting, compare, make_policy
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags
from pointsman_simulator.timing import Timing
from pointsman_simulator.trace import TraceRequest, read_mooncake, scale_arrivals
from pointsman_simulator.workloads import WORKLOADS, generate_workload


def main(arguments: Sequence[str], program: str) -> int:
    """Run the command with `arguments`; `program` is what messages call it."""
    parser = _Parser(prog=program, description="Compare routing policies in virtual time.")
    _add_options(parser)
    options = parser.parse_args(arguments)
    try:
        trace, setting, policies = _prepare(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    _run(options, trace, setting, policies)
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with status 2. The message alone: the list of all options would hide it."""
        self.exit(2, f"{self.prog}: error: {message}\nThe options: {self.prog} --help\n")


def _add_options(parser: argparse.ArgumentParser) -> None:
    engine, lags = EngineConfig(), Lags()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="a trace in Mooncake's form; .jsonl, .jsonl.xz or .jsonl.gz")
    source.add_argument("--workload", metavar="NAME", help=f"a synthetic workload instead: {', '.join(WORKLOADS)}")
    parser.add_argument("--limit", type=int, help="only the first requests of the trace")
    parser.add_argument("--scale", type=float, default=1.0, help="the trace's arrivals, times as fast (%(default)s)")
    parser.add_argument("--requests", type=int, default=4000, help="of the synthetic workload (%(default)s)")
    parser.add_argument("--rate", type=float, default=4.0, help="of the synthetic workload, per second (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="engines (%(default)s)")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"repeatable; all by default: {', '.join(POLICIES)}; with --config also its scheduling policies",
    )
    parser.add_argument("--config", type=Path, help="a configuration whose scheduling policies are compared too")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each policy, with other ties (%(default)s)")
    parser.add_argument("--blocks", type=int, default=engine.num_blocks, help="KV blocks of an engine (%(default)s)")
    parser.add_argument("--block-size", type=int, default=engine.block_size, help="tokens (%(default)s)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=engine.max_num_batched_tokens)
    parser.add_argument("--max-num-seqs", type=int, default=engine.max_num_seqs)
    parser.add_argument("--max-loras", type=int, default=engine.max_loras)
    parser.add_argument("--lora-load-ms", type=float, default=engine.lora_load_ms)
    parser.add_argument("--speedup", type=float, default=1.0, help="of the engines (%(default)s)")
    parser.add_argument("--response-lag-ms", type=float, default=lags.response, help="(%(default)s)")
    parser.add_argument("--kv-lag-ms", type=float, default=lags.kv, help="(%(default)s)")
    parser.add_argument("--load-age-ms", type=float, default=lags.load, help="of load reports (%(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="save results.json, results.md and results.png here")


def _prepare(options: argparse.Namespace) -> tuple[list[TraceRequest], Setting, list[str]]:
    """The workload, its setting, and the policies. Raises ValueError or OSError with the problem of the options."""
    for name in ("workers", "seeds", "requests", "rate", "scale", "blocks", "block_size", "speedup", "processes"):
        if getattr(options, name) <= 0:
            raise ValueError(f"--{name.replace('_', '-')} is above 0")
    trace = _trace(options)
    if not trace:
        raise ValueError("there is no request to replay")
    configured = _configured(options.config)
    setting = Setting(
        workers=options.workers,
        engine=EngineConfig(
            num_blocks=options.blocks,
            block_size=options.block_size,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_loras=options.max_loras,
            lora_load_ms=options.lora_load_ms,
            timing=Timing(speedup=options.speedup),
        ),
        lags=Lags(options.response_lag_ms, options.kv_lag_ms, options.load_age_ms),
        scheduling=configured,
        loras=tuple(sorted({request.lora for request in trace if request.lora is not None})),
    )
    longest = max(request.prompt_tokens + request.output_tokens for request in trace)
    if longest > options.blocks * options.block_size:
        raise ValueError(f"a request of {longest} tokens never fits in {options.blocks} blocks of {options.block_size}")
    policies = list(dict.fromkeys(options.policy or (*POLICIES, *configured)))
    for name in policies:
        make_policy(name, setting, seed=0)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)  # before the minutes whose results it takes
    return trace, setting, policies


def _run(options: argparse.Namespace, trace: list[TraceRequest], setting: Setting, policies: list[str]) -> None:
    """Print the table as it comes, then save."""
    minutes = trace[-1].arrival_ms / 60_000
    print(f"{len(trace)} requests over {minutes:.1f} min on {options.workers} engines; times in ms")
    print(report.heading(), flush=True)
    results = compare(
        trace,
        policies,
        setting,
        options.seeds,
        options.processes,
        lambda compared: print(report.row(compared), flush=True),
    )
    if options.seeds > 1:
        print(*(report.ranges(compared) for compared in results), sep="\n")
    if options.out is not None:
        about = {key: str(value) for key, value in vars(options).items() if value is not None}
        written = report.save(results, dict(about), options.out)
        print("saved " + ", ".join(str(path) for path in written))
        if len(written) < 3:
            print("no plot: matplotlib isn't installed (.uv/bin/uv pip install matplotlib)")


def _trace(options: argparse.Namespace) -> list[TraceRequest]:
    if options.workload is not None:
        return generate_workload(options.workload, options.requests, options.rate, block_size=options.block_size)
    return scale_arrivals(read_mooncake(options.trace, options.block_size, limit=options.limit), options.scale)


def _configured(path: Path | None) -> Mapping[str, SchedulingPolicy]:
    """Policies of a configuration file, under `<file>:<name>` so that they can't hide those that are built in."""
    if path is None:
        return {}
    try:
        document: object = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from error
    return {f"{path.stem}:{name}": policy for name, policy in load(document).scheduling.items()}
