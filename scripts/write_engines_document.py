"""Writes docs/engines.md from what the suite found (`tests/engines/results/`) and what engines' documents say.

python scripts/write_engines_document.py [--check]
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from pointsman_engines.probes.features import FEATURES

ROOT: Final = Path(__file__).resolve().parent.parent
SUITE: Final = ROOT / "tests/engines"
DOCUMENT: Final = ROOT / "docs/engines.md"

THROUGH_THE_GATEWAY: Final = {
    "answers": "Every byte of an answer is the engine's",
    "prompt_tokens": "Prompt tokens are counted as the engine counts them",
    "kv_events": "KV events, sent again after a gap",
    "conversations": "Cached tokens of conversations are predicted without KV events",
    "agents": "Cached tokens of agents' turns are predicted, through messages and responses",
    "ranks": "Each data-parallel rank answers what it was chosen for",
    "resumed_streams": "Streams go on when their engine is killed",
    "prefill_decode": "Prefill and decode on two engines",
    "loras": "Adapters that come and go while it runs",
    "hang_ups": "A client that hangs up frees its place, in every API",
    "troubles": "Kill, restart, sleep, wake-up, reset of the cache",
}
"""File of the suite → what its tests show."""

OUTCOMES: Final = {"supported": "run", "missing": "no", "different": "differs"}

HEAD: Final = """# Engines

<!-- Written by scripts/write_engines_document.py from tests/engines/results and tests/engines/documented.yaml. -->

The features of engines that the gateway uses or passes on, and which engine has each. `run`: the suite in
`tests/engines` ran against this engine at this version and found it. `documented`: the engine's documents or source
have it; it was not run. `differs`: it ran, and the engine does otherwise than the gateway expects; why is below. `no`:
the engine doesn't have it, the model that it was run with doesn't, or nothing shows it.

Certify an engine of your own:

```
pointsman doctor --engine http://127.0.0.1:8000
.venv/bin/pytest tests/engines --engine http://127.0.0.1:8000 --engine http://127.0.0.1:8001 --tokenizer FOLDER
```

The first takes a minute and prints a table. The second also starts a gateway before the engines; it takes some minutes.
`make test-engines` installs vLLM for CPUs, starts two servers with a model that it makes, and runs the whole suite:
an hour or more on two cores, 6 GB of disk, 13 GB of memory. It says `SKIPPED` where the wheel can't be installed.

"""

PREDICTIONS: Final = """
## Predictions and policies on real passes

`python -m benchmarks.engine_predictions --engine URL` measures the error of the learnt pass model on an engine, and
with two engines the outcome of each routing policy. On two cores that other processes shared (load 15 to 22), one
vLLM 0.32.0, 1,100 streamed chats at 12 a second, TTFT p50 65 ms and p90 552 ms:

| requests learnt from | error of the predicted TTFT, p50 | p90 |
|---|---|---|
| 50 | 28% | 104% |
| 200 | 101% | 238% |
| 1000 | 20% | 71% |

Two such engines behind a gateway, 200 chats of the same trace at 6 a second for each policy, one after another:

| policy | TTFT p50, ms | p90 | last token p50, ms | p90 | prompt tokens from a cache |
|---|---|---|---|---|---|
| default | 432 | 1496 | 1475 | 3206 | 26% |
| queue | 434 | 1373 | 1106 | 3856 | 25% |
| prefix-cache | 698 | 2712 | 2504 | 5546 | 26% |
| random | 456 | 2129 | 1622 | 4917 | 26% |

Passes of this model take some milliseconds, so that waits for the processor are most of a first token's time: the
figures say what a busy machine leaves of a prediction, differ from run to run, and say little of a GPU.
"""

PREFILL_AND_DECODE: Final = """
## Prefill and decode on two engines

The suite runs four vLLM servers with NIXL, two for prompts and two that answer, and then one of each: 200 chats each
time, all texts equal to one engine's, 200 transfers, no request lost when an engine for prompts is killed. The figures
are in [prefill-decode.md](prefill-decode.md).
"""


def _cell(result: dict[str, Any], key: str) -> str:
    found = result["features"].get(key)
    return OUTCOMES[found["outcome"]] if found else "no"


def _suite_cell(result: dict[str, Any], name: str) -> str:
    ended = result["tests"].get(name, {})
    return "differs" if ended.get("failed") else "run" if ended.get("passed") else "no"


def written() -> str:
    """The document."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((SUITE / "results").glob("*.json"))]
    results.sort(key=lambda result: (result["engine"] != "vLLM", result["engine"], result["version"]), reverse=False)
    others = yaml.safe_load((SUITE / "documented.yaml").read_text(encoding="utf-8"))
    names = [f"{each['engine']} {each['version']}" for each in (*results, *others)]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for feature in FEATURES:
        cells = [_cell(result, feature.key) for result in results]
        cells += ["documented" if feature.key in each["documented"] else "no" for each in others]
        lines.append(f"| {feature.title} | {' | '.join(cells)} |")
    for name, title in THROUGH_THE_GATEWAY.items():
        cells = [_suite_cell(result, name) for result in results]
        cells += ["documented" if name in each["documented"] else "no" for each in others]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    pages = (SUITE / "pages.md").read_text(encoding="utf-8")
    ranks = (SUITE / "ranks.md").read_text(encoding="utf-8")
    parts = [HEAD + "\n".join(lines), pages, ranks, PREDICTIONS, PREFILL_AND_DECODE, "## Runs\n"]
    for result in results:
        parts.append(f"### {result['engine']} {result['version']}, {result['date']}\n")
        if result.get("how"):
            parts.append(result["how"] + "\n")
        titles = {feature.key: feature.title for feature in FEATURES}
        notes = [
            f"- {titles[key]}: {found['note']}"
            for key, found in result["features"].items()
            if found["outcome"] == "different"
        ]
        measured = [
            f"| {name} | {'; '.join(f'{what}: {_shown(value)}' for what, value in values.items())} |"
            for name, values in result["measured"].items()
        ]
        if notes:
            parts.append("Differs:\n\n" + "\n".join(notes) + "\n")
        if measured:
            parts.append("| measured | |\n|---|---|\n" + "\n".join(measured) + "\n")
    parts.append("## Not run\n")
    parts.append("\n".join(f"- {each['engine']}: {each['why']}. By {each['source']}." for each in others))
    return "\n".join(parts) + "\n"


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - any JSON


def main() -> int:
    """Write the document, or with `--check` say whether it is as it would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="status 1 when it differs")
    if not parser.parse_args().check:
        DOCUMENT.write_text(written(), encoding="utf-8")
        return 0
    return 0 if DOCUMENT.read_text(encoding="utf-8") == written() else 1


if __name__ == "__main__":
    sys.exit(main())
