"""Figures of how the product is written, and a ceiling for each, so that it can only fall.

`python scripts/structure.py [--list pairs|calls|words|methods]`: prints the figures, or all places of one. Exit code 1
when a figure is above its ceiling. A change that lowers a figure lowers its ceiling too.

- pairs: pairs of record classes that share three quarters of the smaller one's fields. One fact, written twice.
- calls: calls with more than five positional arguments. Two of one type can be swapped, and no checker sees it. A
  struct of 18 fields takes msgspec 1.0 µs by name and 0.2 by place, a hundredth of a request's time at most.
- words: of the methods that another file calls, the share whose name is one word, in percent. It can't be searched for.
- methods: names of methods that six classes or more define. A reader without an IDE doesn't know which is called.

One interface counts once in `words` and `methods`: a method isn't counted that overrides one of a base class, or whose
name is of a Protocol with two or more methods, all of which its class has.
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
HOMES: Final = ("contracts", "shared", "services", "tools")
FIELDS: Final = 5
"""A record class with fewer fields shares them by chance."""
SHARED: Final = 0.75
ARGUMENTS: Final = 5
CLASSES: Final = 6
VARIADIC: Final = frozenset({"add_row", "attrgetter", "create_subprocess_exec"})
"""Functions of libraries that take any number of arguments of one meaning; the product's own are found."""

CEILINGS: Final = {"pairs": 1, "calls": 0, "words": 36, "methods": 35}
"""Of today. The aims are 25 pairs, 0 calls, 45 percent of one word and 40 methods."""

_TYPED_COPY: Final = "pyright can't type the arguments of `msgspec.structs.replace`"
_SETTINGS: Final = "settings are pydantic models, messages structs"
_OTHER_BASE: Final = "an event of a publisher's numbered series and a message to one reader; a struct has one base"
_COMPARED: Final = "the ends of two requests side by side: a reader needn't find two other events, which may be gone"
_COMPILED: Final = "the section of the configuration, and the same compiled: other types under the same names"
_COLUMNS: Final = "one value for each engine of a fleet"
ALIKE: Final[dict[frozenset[str], str]] = {
    frozenset(pair): why
    for pair, why in (
        (("KeyOwner", "ClaimNames"), "the names of claims, not their values"),
        (("BatchRecord", "WantedBatch"), "a client's wish, before it is known to be possible"),
        (("DrainQuery", "WantedDrain"), "the body of a webhook, with durations as people write them"),
        (("RequestFacts", "FactsChanges"), _TYPED_COPY),
        (("Journey", "JourneyChanges"), _TYPED_COPY),
        (("AnswerUse", "StageUse"), _SETTINGS),
        (("AnswerUse", "CustomStage"), _SETTINGS),
        (("ConfidenceRule", "Cascade"), _SETTINGS),
        (("StageUse", "CustomStage"), "an entry overrides single settings of a stage: None is no value there"),
        (("StageReport", "Row"), "a row is also of a stage that a request doesn't reach, and of one without a time"),
        (("Rejection", "StageEnded"), _OTHER_BASE),
        (("Answer", "StageEnded"), _OTHER_BASE),
        (("StageEnded", "ResponseReview"), _OTHER_BASE),
        (("ResponseCompleted", "MirroredAnswer"), _COMPARED),
        (("ResponseReview", "MirroredAnswer"), _COMPARED),
        (("Rejection", "Exhausted"), "the error of a filter, before its words are known"),
        (("SpecialTokens", "SpecialPrices"), "tokens, and prices of tokens"),
        (("Cost", "Price"), _COMPILED),
        (("FlowControl", "FlowPolicy"), _COMPILED),
        (("ProfileRun", "Run"), "a run has its candidates as plugins see them, its message as columns of text"),
        (
            ("WorkerRegistration", "ReportedWorker"),
            "what operator or cluster state of an engine, without its own report",
        ),
        (("WorkerLoad", "Load"), _COLUMNS),
        (("Reading", "Load"), _COLUMNS),
        (("Embeddings", "GateSettings"), "each setting's description is of its own kind of model"),
        (("LoggedRequest", "ScheduleRequest"), "the format of released flight logs"),
        (("Chat", "_AnthropicMessages"), "the simulator's own reading of an API checks the writer's"),
    )
}
"""Pairs of classes that may be alike, and why; they aren't counted. At most 25."""


class Source(NamedTuple):
    """One file of the product."""

    file: str
    tree: ast.Module


class Figures(NamedTuple):
    """The places of each figure, and how many there could be."""

    pairs: list[str]
    calls: list[str]
    words: list[str]
    methods: list[str]
    called: int
    """Methods that another file calls."""
    stale: list[str]
    """Entries of `ALIKE` whose classes aren't alike."""

    @property
    def values(self) -> dict[str, int]:
        """The figures by name; `words` in percent, rounded up."""
        share = -(-100 * len(self.words) // self.called) if self.called else 0
        return {"pairs": len(self.pairs), "calls": len(self.calls), "words": share, "methods": len(self.methods)}


def product(root: Path) -> Iterator[Source]:
    """The files that ship: neither tests nor what only tests use."""
    for home in HOMES:
        for path in sorted((root / home).rglob("*.py")):
            place = path.relative_to(root)
            if "tests" not in place.parts and "pointsman_testing" not in place.parts:
                yield Source(place.as_posix(), ast.parse(path.read_text(encoding="utf-8")))


def measure(sources: list[Source]) -> Figures:
    """All figures of these files."""
    called, words = _words(sources)
    found = dict(_pairs(sources))
    return Figures(
        [place for place, names in found.items() if names not in ALIKE],
        list(_calls(sources)),
        words,
        list(_methods(sources)),
        called,
        [", ".join(sorted(names)) for names in ALIKE.keys() - set(found.values())],
    )


def _classes(sources: list[Source]) -> Iterator[tuple[str, ast.ClassDef]]:
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                yield source.file, node


def _fields(node: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and not ast.unparse(line.annotation).startswith(("ClassVar", "Final"))
    )


def _pairs(sources: list[Source]) -> Iterator[tuple[str, frozenset[str]]]:
    records = [(file, node.name, fields) for file, node in _classes(sources) if len(fields := _fields(node)) >= FIELDS]
    for (file, name, fields), (other_file, other, others) in combinations(records, 2):
        share = len(fields & others) / min(len(fields), len(others))
        if share >= SHARED:
            place = f"{file} {name} = {other_file} {other} ({share:.0%} of {min(len(fields), len(others))})"
            yield place, frozenset((name, other))


def _calls(sources: list[Source]) -> Iterator[str]:
    nodes = [(source.file, node) for source in sources for node in ast.walk(source.tree)]
    functions = [node for _, node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    variadic = VARIADIC | {function.name for function in functions if function.args.vararg is not None}
    for file, node in nodes:
        if isinstance(node, ast.Call) and len(node.args) > ARGUMENTS:
            called = ast.unparse(node.func)
            if called.rpartition(".")[2] not in variadic:
                yield f"{file}:{node.lineno} {called}: {len(node.args)}"


def _definitions(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for line in node.body:
        if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef) and not line.name.startswith("__"):
            yield line


def _names(node: ast.ClassDef) -> set[str]:
    return {method.name for method in _definitions(node)}


class _Interfaces:
    """Which classes inherit a method's name, or have it from a Protocol. Classes are known by their names alone."""

    def __init__(self, sources: list[Source]) -> None:
        self._classes: defaultdict[str, list[ast.ClassDef]] = defaultdict(list)
        for _, node in _classes(sources):
            self._classes[node.name].append(node)
        protocols = (node for _, node in _classes(sources) if "Protocol" in _bases(node))
        self._protocols = [names for node in protocols if len(names := _names(node)) > 1]

    def introduced(self, node: ast.ClassDef) -> set[str]:
        """The methods whose names are this class's own."""
        names = _names(node)
        for base in self._above(node, {node.name}):
            names -= _names(base)
        if "Protocol" not in _bases(node):
            everything = _names(node).union(*map(_names, self._above(node, {node.name})))
            for protocol in self._protocols:
                if protocol <= everything:
                    names -= protocol
        return names

    def _above(self, node: ast.ClassDef, seen: set[str]) -> Iterator[ast.ClassDef]:
        for name in _bases(node) - seen:
            seen.add(name)
            for base in self._classes[name]:
                yield base
                yield from self._above(base, seen)


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}


def _words(sources: list[Source]) -> tuple[int, list[str]]:
    defined: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    interfaces = _Interfaces(sources)
    for file, node in _classes(sources):
        for method in sorted(interfaces.introduced(node)):
            if not method.startswith("_"):
                defined[method].append((file, node.name))
    callers: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute):
                callers[node.attr].add(source.file)
    called = 0
    words: list[str] = []
    for name, places in sorted(defined.items()):
        for file, owner in places:
            if callers[name] - {file}:
                called += 1
                if "_" not in name:
                    words.append(f"{file} {owner}.{name}")
    return called, words


def _methods(sources: list[Source]) -> Iterator[str]:
    owners: defaultdict[str, int] = defaultdict(int)
    interfaces = _Interfaces(sources)
    for _, node in _classes(sources):
        for name in interfaces.introduced(node):
            owners[name] += 1
    for name, count in sorted(owners.items(), key=lambda each: (-each[1], each[0])):
        if count >= CLASSES:
            yield f"{name}: {count} classes"


def main() -> int:
    """Print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=list(CEILINGS), help="print the places of one figure")
    asked: str | None = parser.parse_args().list
    figures = measure(list(product(ROOT)))
    if asked is not None:
        sys.stdout.write("\n".join(getattr(figures, asked)) + "\n")
        return 0
    above = bool(figures.stale)
    for pair in figures.stale:
        sys.stdout.write(f"{pair}: no longer alike; delete the reason\n")
    for name, value in figures.values.items():
        ceiling = CEILINGS[name]
        note = "" if value == ceiling else " (lower the ceiling)" if value < ceiling else " ABOVE the ceiling"
        sys.stdout.write(f"{name}: {value}, ceiling {ceiling}{note}\n")
        above = above or value > ceiling
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
