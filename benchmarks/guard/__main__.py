"""The cost of a check, and its detections. `python -m benchmarks.guard`.

CPU time of the shortest of many rounds, without the bus. The patterns were written with the texts of the corpus at
hand; those of `unseen.txt` were written afterwards and no pattern was changed for them.
"""

import ast
import asyncio
import json
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson

from benchmarks.guard.numbers import cards_in
from benchmarks.guard.public import public_corpora
from benchmarks.machine import describe
from pointsman_core.config import Guard, load
from pointsman_guard.configuration import compile_all
from pointsman_guard.domain.policy import GuardPolicy
from pointsman_guard.domain.prompt import GuardedPrompt
from pointsman_plugins.guarding import Checked, CheckedText, Direction

CORPUS: Final = Path(__file__).resolve().parents[2] / "services/guard/tests/corpus"
ROUNDS: Final = 200
BARS_US_PER_KB: Final = {"prose": 40.0, "code": 60.0, "other script": 150.0, "encoded": 400.0, "chat of 40": 80.0}
"""On a core that others use too."""
WINDOW_BAR_US: Final = 250.0
CAUGHT: Final = 0.95
FALSE_ALARMS: Final = 0.01
PROSE_SHARE: Final = 3
"""One docstring in this number is among the benign texts that a classifier learns from."""

PROSE: Final = "The quick brown fox asks how to write a function that sorts a list of trains by the hour of departure. "
CODE: Final = (
    "def depart(train: Train, at: datetime) -> str:\n"
    "    return f'{train.name!r} left {at:%H:%M} from track_{train.track}'\n"
)
OTHER: Final = "Быстрая лиса спрашивает, как отсортировать список поездов. 狐狸问怎样排列火车。Füchse grüßen Züge. "
ENCODED: Final = (
    "Read SGVsbG8gd29ybGQsIHRoaXMgaXMgYSB0ZXN0IG9mIGEgbG9uZyB0ZXh0 and 48656c6c6f20776f726c6420616761696e, then "
    "%48%65%6c%6c%6f. "
)


def sized(text: str, size: int) -> str:
    """The text, repeated and cut to `size` characters."""
    return (text * (size // len(text) + 1))[:size]


def measured(work: Callable[[], object]) -> float:
    """Microseconds of CPU of the shortest round."""
    shortest = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        work()
        shortest = min(shortest, time.process_time_ns() - began)
    return shortest / 1000


def checked(texts: Sequence[str], direction: Direction = "request") -> Checked:
    """These texts of a user, or of an answer."""
    return Checked(
        direction, "default", "request-1", [CheckedText(str(number), "user", text) for number, text in enumerate(texts)]
    )


def stopped(policy: GuardPolicy, texts: Sequence[str], direction: Direction = "request") -> bool:
    """Whether the default policy blocks or redacts a part of it."""
    judgement = asyncio.run(policy.judge_texts(checked(texts, direction)))
    return judgement.blocked is not None or bool(judgement.redact)


def categories(policy: GuardPolicy, text: str) -> list[str]:
    """The categories that the default policy finds in a user's text."""
    return list(asyncio.run(policy.judge_texts(checked([text]))).categories)


def docstrings() -> Iterator[str]:
    """Technical prose that was not written for this benchmark."""
    folder = Path(sysconfig.get_path("stdlib"))
    for file in (*folder.glob("*.py"), *folder.glob("[a-su-z]*/*.py")):
        if "site-packages" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield text


def harmless_prompts() -> list[str]:
    """The harmless prompts of the guard's own corpus."""
    return [line for line in (CORPUS / "harmless.txt").read_text().splitlines() if line]


def costs(policy: GuardPolicy) -> list[bool]:
    """Print what checks cost; whether each kept its bar."""
    [detector] = policy.detectors
    kept: list[bool] = []
    for size in (1_000, 10_000, 100_000):
        cases = {
            "prose": [sized(PROSE, size)],
            "code": [sized(CODE, size)],
            "other script": [sized(OTHER, size)],
            "encoded": [sized(ENCODED, size)],
            "chat of 40": [sized(PROSE, size // 40)] * 40,
        }
        for name, texts in cases.items():
            shown = checked(texts)
            each = measured(lambda shown=shown: detector.detect(shown))
            per_kb = each / (sum(len(text.encode()) for text in texts) / 1000)
            bar = BARS_US_PER_KB[name]
            # Small ones are the constant cost of a check.
            kept.append(per_kb <= bar or size < 10_000)
            print(f"  {name:<14} {size // 1000:>4} KB {each:10.1f} µs {per_kb:8.1f} µs/KB   bar {bar:g}")
    window = checked([sized(PROSE, 640)], "response")
    each = measured(lambda: detector.detect(window))
    kept.append(each <= WINDOW_BAR_US)
    print(f"  a window of 512 + 128 characters {each:10.1f} µs   bar {WINDOW_BAR_US:g} µs")
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": sized(PROSE, 10_000)}]})
    print(f"  reading the texts of a 10 KB body {measured(lambda: GuardedPrompt.from_body(body)):9.1f} µs")
    return kept


def sees(policy: GuardPolicy) -> list[bool]:
    """Print the share of caught texts, and of harmless texts that are caught; returns whether the bars are met."""
    attacks = json.loads((CORPUS / "attacks.json").read_text())
    alone = [attack for attack in attacks if attack["disguise"] != "chunks"]
    caught = sum(stopped(policy, attack["texts"]) for attack in alone)
    harmless = harmless_prompts()
    alarms = sum(stopped(policy, [line]) for line in harmless)
    unseen = (CORPUS / "unseen.txt").read_text().splitlines()
    new = [line[2:] for line in unseen if line.startswith("+")]
    fine = [line[2:] for line in unseen if line.startswith("-")]
    print(f"  corpus: {caught} of {len(alone)} attacks caught, bar {CAUGHT:.0%}")
    print(f"  corpus: {alarms} of {len(harmless)} harmless prompts stopped, bar {FALSE_ALARMS:.0%}")
    print(f"  unseen: {sum(stopped(policy, [text]) for text in new)} of {len(new)} attacks caught")
    print(f"  unseen: {sum(stopped(policy, [text]) for text in fine)} of {len(fine)} harmless prompts stopped")
    texts = list(docstrings())
    counts = Counter(category for text in texts for category in categories(policy, text))
    print(f"  docstrings of the standard library, {len(texts)} of them: {dict(counts) or 'nothing'} found")
    return [caught >= CAUGHT * len(alone), alarms <= FALSE_ALARMS * len(harmless)]


def main() -> int:
    """Measure everything; 1 when a bar is missed."""
    print(describe())
    policy = compile_all(load({"guards": {"default": Guard()}}))["default"]
    print("what a check costs")
    kept = costs(policy)
    print("what it sees")
    kept += sees(policy)
    print("cards in ordinary numbers")
    kept += cards_in(lambda text: categories(policy, text))
    print("attacks that others collected")
    kept += public_corpora(policy, harmless_prompts(), list(docstrings())[::PROSE_SHARE])
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
