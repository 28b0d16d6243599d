"""An endless batch behind a workload in virtual time: what its engines' idle capacity holds, and what it costs."""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import mean

from pointsman_cli.flight.simulate import begin_replay
from pointsman_cli.words import CommandError
from pointsman_simulator.background import FILLINGS, Filled, Filling, run_filled
from pointsman_simulator.policy import BackgroundLoad
from pointsman_simulator.replay import Replay, ReplayOptions


def parse_load(text: str) -> BackgroundLoad:
    """`512,128`: tokens of a prompt, and of an answer. Raises CommandError."""
    try:
        prompt, output = map(int, text.split(","))
    except ValueError:
        prompt = output = 0
    if prompt < 1 or output < 1:
        raise CommandError(f"--batch {text} isn't two numbers of tokens.", "For example: --batch 512,128")
    return BackgroundLoad(prompt, output)


def simulate_batch(options: ReplayOptions, load: BackgroundLoad) -> None:
    """Print a row for each rule that fills what idles, and what the gateway's own found room for."""
    replay = begin_replay(options)
    print(f"behind them a batch of {load.prompt_tokens} prompt and {load.output_tokens} output tokens each")
    print(f"{'rule':15} {'TTFT':>7} {'p99':>7} {'ITL':>7} {'p99':>7} {'answers/s':>10} {'room used':>9} {'stops':>7}")
    found: dict[Filling, list[Filled]] = {}
    with ProcessPoolExecutor(options.processes) as pool:
        runs = {
            rule: [pool.submit(_run, replay, load, rule, seed) for seed in range(options.seeds)] for rule in FILLINGS
        }
        for rule in FILLINGS:
            found[rule] = [each.result() for each in runs[rule]]
            sys.stdout.write(f"{_row(rule, found[rule])}\n")
            sys.stdout.flush()
    without, ours = found["none"], found["pointsman"]
    answers = round(_mean(ours, "background_per_s") * replay.minutes * 60)
    prompts, outputs = answers * load.prompt_tokens, answers * load.output_tokens
    print(f"The idle capacity holds {answers:,} answers: {prompts:,} prompt and {outputs:,} output tokens.")
    changes = [_mean(ours, name) / _mean(without, name) - 1 for name in ("ttft_p99", "itl_p99")]
    print(f"With pointsman, the requests' TTFT p99 changes by {changes[0]:+.1%}, their ITL p99 by {changes[1]:+.1%}.")


def _run(replay: Replay, load: BackgroundLoad, rule: Filling, seed: int) -> Filled:
    settings = next(
        (replay.setting.scheduling[name] for name in replay.policies if name in replay.setting.scheduling), None
    )
    return run_filled(replay.trace, replay.setting, rule, load, settings=settings, seed=seed)


def _row(rule: Filling, runs: Sequence[Filled]) -> str:
    times = " ".join(f"{_mean(runs, name):7.0f}" for name in ("ttft_mean", "ttft_p99"))
    gaps = " ".join(f"{_mean(runs, name):7.1f}" for name in ("itl_mean", "itl_p99"))
    batch = f"{_mean(runs, 'background_per_s'):10.2f} {_mean(runs, 'used'):9.0%} {_mean(runs, 'stops'):7.0f}"
    return f"{rule:15} {times} {gaps} " + (batch if rule != "none" else "")


def _mean(runs: Sequence[Filled], name: str) -> float:
    return mean(getattr(run, name) for run in runs)
