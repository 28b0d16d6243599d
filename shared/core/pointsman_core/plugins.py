"""Names for what plugins are configured by, and the errors of a configuration that can't be used.

The plugins themselves, and how they are found and built, are in `pointsman_plugins`.
"""

import difflib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, TypeVar

T_co = TypeVar("T_co", covariant=True)


class PluginError(ValueError):
    """A plugin can't be used as configured. The message names the instance and what would be right; `path` leads to
    the offending key from where the plugin, or the list of plugins, is configured. `further` are errors beside it."""

    def __init__(self, message: str, path: Sequence[str | int] = (), further: "Sequence[PluginError]" = ()) -> None:
        super().__init__(message)
        self.path: Final = tuple(path)
        self.further: Final = tuple(further)

    def within(self, *above: str | int) -> "PluginError":
        """The error with its path extended by the enclosing section."""
        return PluginError(str(self), (*above, *self.path), [other.within(*above) for other in self.further])

    def list_errors(self) -> "list[PluginError]":
        """This error and those beside it, one by one."""
        return [PluginError(str(self), self.path), *(one for other in self.further for one in other.list_errors())]


@contextmanager
def within(*above: str | int) -> Generator[None]:
    """Place the PluginErrors of this block below the keys `above`."""
    try:
        yield
    except PluginError as error:
        raise error.within(*above) from error


class Gathering:
    """Gathers the PluginErrors of several places, so that all are reported together."""

    def __init__(self) -> None:
        self._found: Final[list[PluginError]] = []

    @contextmanager
    def collect_errors_below(self, *above: str | int) -> Generator[None]:
        """Keep the PluginError of this block, placed below the keys `above`, and go on behind it."""
        try:
            yield
        except PluginError as error:
            self._found.append(error.within(*above))

    def raise_gathered(self) -> None:
        """Raise the gathered errors as one PluginError."""
        if self._found:
            first, *others = self._found
            raise PluginError(str(first), first.path, (*first.further, *others)) from first


class Key(Generic[T_co]):
    """A typed name of a request attribute, owned by the plugin that produces it. Keys are constants of modules."""

    __slots__ = ("name", "value_type")

    def __init__(self, name: str, value_type: type[T_co]) -> None:
        self.name: Final = name
        self.value_type: Final = value_type

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


class Spec(NamedTuple):
    """One configured instance: type name, instance name, parameters as written."""

    use: str
    name: str
    params: Mapping[str, object]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The error text for an unknown name: the kind of thing, the closest known name, and all known names."""
    names = sorted(known)
    likely = did_you_mean(name, names)
    hint = f"{likely} " if likely else ""
    return f"unknown {what} {name!r}; {hint}known: {', '.join(names) or 'none'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question that names the likely one, e.g. `did you mean 'queue'?`; empty when none is near."""
    likely = difflib.get_close_matches(name, tuple(known), n=1)
    return f"did you mean {likely[0]!r}?" if likely else ""
