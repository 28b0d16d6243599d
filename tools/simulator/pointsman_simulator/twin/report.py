"""The twin's findings in 80 columns, as data, and as a picture."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap

import orjson

from pointsman_simulator.twin.anew import PolicyFigures, ranked
from pointsman_simulator.twin.build import Twin
from pointsman_simulator.twin.calibration import BARS, Comparison, Figure
from pointsman_simulator.twin.measured import NAMES, coefficients
from pointsman_simulator.twin.what_if import WhatIf

_WIDTH = 80


def about(twin: Twin) -> str:
    """The recording and its engines, in a few lines."""
    recording = twin.recording
    minutes = recording.span_ms / 60_000
    policy = f"policy {recording.policy_name!r}" if recording.policy else "a policy that isn't in the log"
    way = twin.fit.path
    lines = [
        *wrap(
            f"{len(recording.requests):,} requests over {minutes:.1f} min in pool {recording.pool}, {policy}", _WIDTH
        ),
        f"Beside the engine: {way.constant_ms:.1f} ms, and {way.kilotoken_ms:.2f} ms for each 1,000 prompt tokens;",
        f"it scatters by {way.scatter_ms:.1f} ms",
        "",
        f"{'engine':<20}{'pass':>8}{'prefill, ms':>16}{'decode, ms':>18}{'KV':>12}",
        f"{'':<20}{'tokens':>8}{'once / 1,000':>16}{'empty / full':>18}{'tokens':>12}",
    ]
    for name, config in twin.fit.engines.items():
        value = dict(zip(NAMES, coefficients(config.timing).tolist(), strict=True))
        thousand = value["prefill_linear"] * 1e3 + value["prefill_quadratic"] * 1e6
        empty, full = config.timing.decode_ms(0.0, 1), config.timing.decode_ms(1.0, 1)
        prefill, decode = f"{value['prefill_constant']:.1f} / {thousand:.1f}", f"{empty:.1f} / {full:.1f}"
        tokens = config.num_blocks * config.block_size
        lines.append(f"{name[:19]:<20}{config.max_num_batched_tokens:>8,}{prefill:>16}{decode:>18}{tokens:>12,}")
    return "\n".join(lines)


def check(comparison: Comparison) -> str:
    """One comparison of predicted with recorded figures."""
    titles = {
        "the engines": "Engines: fitted to the first half, choices as recorded, judged on the\nsecond half",
        "the policy": "Policy: fitted to the whole, the recorded policy decides anew",
    }
    lines = [
        f"{titles.get(comparison.how, comparison.how)} ({comparison.requests:,} requests)",
        f"{'':<12}{'recorded':>12}{'predicted':>12}{'error':>9}{'bar':>8}{'chance':>9}",
    ]
    for figure in comparison.figures:
        mark = "" if figure.is_within else "  missed"
        lines.append(
            f"{f'{figure.of} {figure.name}':<12}{figure.recorded:>9,.0f} ms{figure.predicted:>9,.0f} ms"
            f"{figure.error:>+9.1%}{BARS[figure.name]:>8.0%}{_share(figure):>9}{mark}"
        )
    return "\n".join(lines)


def _share(figure: Figure) -> str:
    return f"±{figure.chance_ms / figure.recorded:.1%}" if figure.recorded else ""


def verdict(twin: Twin) -> str:
    """Trust or don't, and why not."""
    if twin.verdict.is_trusted:
        return "Verdict: trust"
    lines = ["Verdict: don't trust"]
    for reason in twin.verdict.reasons:
        lines += wrap(reason, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(lines)


def comparison(figures: Sequence[PolicyFigures], change: WhatIf) -> str:
    """A row for each policy: means in ms with their 95 % intervals, and the difference from the first one."""
    lines = [
        *wrap(f"Policies, {change}; times in ms, in brackets the interval of 95 %", _WIDTH),
        f"{'':<15}{'TTFT':>7}{'':>15}{'':>7}{'E2E':>8}{'':>7}{'TTFT compared':>21}",
        f"{'policy':<15}{'mean':>7}{'':>15}{'p99':>7}{'mean':>8}{'reuse':>7}{f'with {figures[0].policy}'[:20]:>21}",
    ]
    for each in figures:
        ttft = each.ttft_mean
        bounds = f" ({ttft.least:,.0f}-{ttft.greatest:,.0f})"
        lines.append(
            f"{each.policy[:14]:<15}{ttft.value:>7,.0f}{bounds:>15}{each.ttft_p99.value:>7,.0f}"
            f"{each.e2e_mean.value:>8,.0f}{each.reuse:>7.3f}{_change(each, figures[0].policy):>21}"
        )
    if len(figures) > 1:
        lines += ["", *wrap(f"Order by TTFT (= is a tie): {ranked(figures)}", _WIDTH)]
    return "\n".join(lines)


def _change(figures: PolicyFigures, reference: str) -> str:
    if figures.policy == reference:
        return "-"
    change = figures.ttft_change
    interval = f"({change.least:+.0%} {change.greatest:+.0%})"
    return f"tie {interval}" if reference in figures.ttft_ties else f"{change.value:+.0%} {interval}"


def save(twin: Twin, figures: Sequence[PolicyFigures], change: WhatIf, folder: Path) -> list[Path]:
    """Write `twin.json`, `twin.txt` and `twin.png`. Returns the written files: the picture needs matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "twin.json", folder / "twin.txt"]
    engines = {name: asdict(config) for name, config in twin.fit.engines.items()}
    data = {
        "pool": twin.recording.pool,
        "requests": len(twin.recording.requests),
        "began_unix_ms": twin.recording.began_unix_ms,
        "policy": twin.recording.policy_name,
        "what_if": str(change),
        "trusted": twin.verdict.is_trusted,
        "reasons": twin.verdict.reasons,
        "path": asdict(twin.fit.path),
        "engines": engines,
        "checks": [asdict(each) for each in twin.checks],
        "slices": [asdict(each) for each in twin.slices],
        "policies": [asdict(each) for each in figures],
    }
    written[0].write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
    parts = [about(twin), *(check(each) for each in twin.checks), verdict(twin)]
    parts += [comparison(figures, change)] if figures else []
    written[1].write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    from pointsman_simulator.twin.plot import plot

    if plot(twin, figures, change, folder / "twin.png"):
        written.append(folder / "twin.png")
    return written
