"""The text of a configuration: YAML in, checked `Config` out, and errors that name key and line."""

import re
from collections.abc import Callable
from typing import Final, TypeVar, cast

import yaml

from pointsman_core.config import Config, ConfigError, load

T = TypeVar("T")

# The one in C where PyYAML was built with libyaml, as its wheels are: ten times as fast.
_Loader: Final[type[yaml.SafeLoader]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_SHORT_FORM: Final = re.compile(r"((?:scheduling|selectors)\..+?)(\.(?:profiles|rankings))\.default((?:\..+)?)")

NODE_LIMIT: Final = 100_000
DEPTH_LIMIT: Final = 50
"""A file for ten thousand models is far below both."""


def parse(text: str) -> Config:
    """Check a configuration text. Raises ConfigError; the text of each problem ends with its line."""
    return read(text, _loaded)


def _loaded(document: object) -> Config:
    # A truncated file may be empty; applying it would remove every pool.
    if not document and document in (None, {}):
        raise ConfigError([("", "the configuration is empty; write at least `pools` or `providers`")])
    return load(document)


def read(text: str, check: Callable[[object], T]) -> T:
    """The result of `check` for a YAML text. Raises ConfigError, as `check` may; every problem ends with its line."""
    outline = _Outline()
    try:
        document = _outlined(text, outline)
    except yaml.YAMLError as error:
        raise ConfigError([("", _yaml_problem(error, text))]) from error
    except ConfigError:
        raise
    except ValueError as error:  # for invalid dates and oversized integers
        raise ConfigError([("", f"not valid YAML: {error}")]) from error
    if outline.problems:
        raise ConfigError(outline.problems)
    lines = outline.lines
    try:
        return check(document)
    except ConfigError as error:
        raise _placed(error, lines) from error


def located(text: str, error: ConfigError) -> ConfigError:
    """The same problems of a text that `parse` accepted, each with its line."""
    outline = _Outline()
    _outlined(text, outline)
    return _placed(error, outline.lines)


def _outlined(text: str, outline: "_Outline") -> object:
    """The document, walked by `outline` before anything is made of it. Raises what yaml does, and ConfigError."""
    _check_depth(text)
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        outline.visit(root, "", 0)
        return cast("object", loader.construct_document(root))  # pyright: ignore[reportUnknownMemberType] - untyped
    finally:
        loader.dispose()


def _check_depth(text: str) -> None:
    # libyaml makes nodes recursively and without a bound: deep nesting would end the process.
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_LIMIT + 1:
                line = event.start_mark.line + 1  # pyright: ignore[reportOptionalMemberAccess] - text has marks
                raise ConfigError([("", f"nested deeper than {DEPTH_LIMIT} levels (line {line})")])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Outline:
    """The line of every key, and faults that YAML itself lets pass: a key that is there twice (YAML keeps the last),
    and aliases that make a small text huge."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.problems: list[tuple[str, str]] = []
        self._nodes = 0

    def visit(self, node: yaml.Node, path: str, depth: int) -> None:
        """Walk the document. Raises ConfigError when it is too large."""
        self._nodes += 1
        line = node.start_mark.line + 1
        if self._nodes > NODE_LIMIT:
            raise ConfigError([("", f"more than {NODE_LIMIT} values, aliases included (line {line})")])
        if depth > DEPTH_LIMIT:
            raise ConfigError([("", f"nested deeper than {DEPTH_LIMIT} levels (line {line})")])
        self.lines[path] = line
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, path, depth)
        elif isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(cast("list[yaml.Node]", node.value)):
                self.visit(item, f"{path}.{position}", depth + 1)

    def _visit_mapping(self, node: yaml.MappingNode, path: str, depth: int) -> None:
        seen: dict[str, int] = {}
        for key_node, value_node in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            below = f"{path}.{key}" if path else key
            if key in seen:
                self.problems.append((below, f"occurs twice, in lines {seen[key]} and {line}"))
            seen[key] = line
            self.visit(value_node, below, depth + 1)
            self.lines[below] = line


def _placed(error: ConfigError, lines: dict[str, int]) -> ConfigError:
    written = ((_as_written(path, lines), problem) for path, problem in error.problems)
    return ConfigError([(path, _with_line(path, problem, lines)) for path, problem in written])


def _as_written(path: str, lines: dict[str, int]) -> str:
    """The path of a key as the file has it. In the short form of a configuration a path names no profile and no
    ranking."""
    short = _SHORT_FORM.fullmatch(path)
    return path if short is None or f"{short[1]}{short[2]}" in lines else f"{short[1]}{short[3]}"


def _with_line(path: str, problem: str, lines: dict[str, int]) -> str:
    """Add the line of the innermost key that the text has; a default has no line."""
    for named in re.findall(r"'([^']*)'", problem):
        line = lines.get(f"{path}.{named}" if path else named)
        if line is not None:
            return f"{problem} (line {line})"
    if not path:  # about the file as a whole
        return problem
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        line = lines.get(".".join(parts[:length]))
        if line is not None:
            return f"{problem} (line {line})"
    return problem


def _yaml_problem(error: yaml.YAMLError, text: str) -> str:
    mark: yaml.Mark | None = getattr(error, "problem_mark", None)
    if mark is None:
        return f"not valid YAML: {error}"
    last = text.count("\n") + 1
    # libyaml reports text missing at the end of the last line as an error of the line after it.
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark.line < last else f"line {last}, at its end"
    problem = str(getattr(error, "problem", error))
    if problem == "but found another document":
        problem = "a second document begins here; the file must be one document"
    elif problem.endswith("cannot start any token"):
        found = text.splitlines()[mark.line][mark.column]
        problem = (
            "a tab stands here; indent with spaces"
            if found == "\t"
            else f"put a text that begins with {found} in quotes"
        )
    return f"not valid YAML: {problem} ({place})"
