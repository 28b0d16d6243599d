"""Configuration files: reading them, and the checks of every service."""

import importlib
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

import yaml

from pointsman_cli.services import SERVICES
from pointsman_cli.words import CommandError
from pointsman_core import units
from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError, did_you_mean
from pointsman_runtime.configuring.config_text import located, parse

DEFAULT_FILE: Final = Path("pointsman.yaml")


class Document(NamedTuple):
    """A configuration and its source text; the text is stored."""

    text: str
    config: Config


class Problem(NamedTuple):
    """Something that a configuration can't be applied with."""

    path: str
    """Dotted path of the key; empty for the document as a whole."""
    text: str
    """The problem and its remedy; ends with the line number where it is known."""
    by: str
    """The party that refuses it: `configuration`, `bus`, or a service."""


class _Reader(Protocol):
    def check(self, config: Config) -> None: ...


def read(path: Path) -> str:
    """The text of a file. CommandError when it can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} isn't UTF-8 text (byte {error.start}).", "Save the file as UTF-8.") from error
    except OSError as error:
        raise CommandError(f"{path} can't be read: {error.strerror}.", _readable(path)) from error


def _readable(path: Path) -> str:
    """Advice that names the likely file of the same folder."""
    with suppress(OSError):
        if likely := did_you_mean(path.name, [each.name for each in path.parent.iterdir() if each.is_file()]):
            return f"In {path.parent.absolute()}, {likely}"
    return "Name a file that exists and that this user may read, e.g. pointsman.yaml."


def written(document: dict[str, object]) -> str:
    """A configuration as text."""
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)


def check(text: str, *, by_hand: bool = True) -> tuple[Document | None, list[Problem]]:
    """Check a text as the services will. Returns either the document or every problem.

    `by_hand`: durations without a unit are refused; services take them as seconds.

    The checks of services run only on a document without problems of its own; otherwise their findings would be
    consequences of those.
    """
    with units.written() if by_hand else nullcontext():
        return _checked(text)


def _checked(text: str) -> tuple[Document | None, list[Problem]]:
    try:
        config = parse(text)
    except ConfigError as error:
        return None, [Problem(path, words, "configuration") for path, words in error.problems]
    problems: list[Problem] = []
    for service in SERVICES:
        reader = cast("_Reader", importlib.import_module(f"pointsman_{service.replace('-', '_')}.configuration"))
        try:
            reader.check(config)
        except ConfigError as error:
            problems += [Problem(path, words, service) for path, words in located(text, error).problems]
        except PluginError as error:  # an installed plugin failed; the configuration isn't at fault
            problems.append(Problem("", str(error), service))
    return (None if problems else Document(text, config)), problems


def checked(text: str, source: str, *, by_hand: bool = True) -> Document:
    """The document, as of `check`. CommandError with every problem."""
    document, problems = check(text, by_hand=by_hand)
    if document is None:
        raise CommandError(f"{source} is refused:\n" + "\n".join(f"  {shown(problem)}" for problem in problems))
    return document


def shown(problem: Problem) -> str:
    """One problem on one line."""
    return f"{problem.path}: {problem.text}" if problem.path else problem.text
