"""The text of a configuration: YAML in, checked `Config` out, and errors that name key and line."""

import re
from collections.abc import Callable
from typing import Final, TypeVar, cast

import yaml

from pointsman_core.config import Config, ConfigError, load

T = TypeVar("T")

NODE_LIMIT: Final = 100_000
DEPTH_LIMIT: Final = 50
"""A file for ten thousand models is far below both."""


def parse(text: str) -> Config:
    """Check a configuration text. Raises ConfigError; the text of each problem ends with its line."""
    return read(text, load)


def read(text: str, check: Callable[[object], T]) -> T:
    """What `check` makes of a YAML text. Raises ConfigError, also when `check` does; a problem ends with its line."""
    outline = _Outline()
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            outline.visit(root, "", 0)
        document = cast("object", yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError([("", _yaml_problem(error))]) from error
    except RecursionError as error:
        raise ConfigError([("", f"nested deeper than {DEPTH_LIMIT} levels")]) from error
    if outline.problems:
        raise ConfigError(outline.problems)
    lines = outline.lines
    try:
        return check(document)
    except ConfigError as error:
        raise ConfigError([(path, _with_line(path, problem, lines)) for path, problem in error.problems]) from error


def located(text: str, error: ConfigError) -> ConfigError:
    """The same problems of a text that `parse` accepted, each with its line."""
    outline = _Outline()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        outline.visit(root, "", 0)
    return ConfigError([(path, _with_line(path, problem, outline.lines)) for path, problem in error.problems])


class _Outline:
    """The line of every key, and what YAML itself would let pass: a key twice, of which it keeps the last, and
    aliases that make a small text huge."""

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


def _with_line(path: str, problem: str, lines: dict[str, int]) -> str:
    """Add the line of the innermost key that the text has; a default has no line."""
    for named in re.findall(r"'([^']*)'", problem):
        line = lines.get(f"{path}.{named}" if path else named)
        if line is not None:
            return f"{problem} (line {line})"
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        line = lines.get(".".join(parts[:length]))
        if line is not None:
            return f"{problem} (line {line})"
    return problem


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"not valid YAML: {error}"
    return f"not valid YAML: {getattr(error, 'problem', error)} (line {mark.line + 1}, column {mark.column + 1})"
