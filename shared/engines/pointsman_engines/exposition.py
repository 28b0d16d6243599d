"""Reads single families out of a Prometheus text exposition without parsing the rest.

An engine's `/metrics` has 60 to 100 KB of histograms, and only five of its families describe the load.
`bytes.find` skips the others at memory speed; a whole parse costs a hundred times more
(`benchmarks/engine_metrics`). Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import re
from typing import Final, NamedTuple

# `}` and escaped quotes may stand inside a quoted label value.
_SAMPLE: Final = re.compile(rb'[ \t]*(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]*([^ \t#]+)')
_LABEL: Final = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_AFTER_NAME: Final = frozenset(b"{ \t")


class UnreadableMetrics(Exception):
    """The answer isn't what this engine's `/metrics` should look like."""


class Sample(NamedTuple):
    """One sample of a metric family: its name, labels and value."""

    value: float
    """May be infinite or NaN."""
    raw_labels: bytes
    """As between the braces; empty when there are none."""

    def labels(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for match in _LABEL.finditer(self.raw_labels):
            text = match[2].decode("utf-8", "replace")
            found[match[1].decode()] = _ESCAPE.sub(_unescaped, text) if "\\" in text else text
        return found


class Exposition:
    """One answer of `/metrics`."""

    def __init__(self, text: bytes) -> None:
        # Every sample then begins after a line break, the first one too.
        self._text = b"\n" + text

    def has_prefix(self, prefix: bytes) -> bool:
        """Whether any sample's name begins with `prefix`."""
        return b"\n" + prefix in self._text

    def find_samples(self, name: bytes) -> list[Sample]:
        """Every sample whose name is exactly `name`, in order. Raises UnreadableMetrics on a malformed one."""
        text = self._text
        start = b"\n" + name
        found: list[Sample] = []
        at = text.find(start)
        while at >= 0:
            after = at + len(start)
            if text[after : after + 1] and text[after] in _AFTER_NAME:
                end = text.find(b"\n", after)
                found.append(_sample(name, text[after : end if end >= 0 else len(text)]))
            elif found:
                break  # a family's samples stand together; this is the next family, whose name is longer
            at = text.find(start, after)
        return found

    def kind_of(self, name: bytes) -> str | None:
        """The type of a family, by the name of its samples: `gauge`, `counter`, …; None when the text has no type. A
        counter's type is listed under the name with `_total`; in OpenMetrics, under the name without."""
        for family in (name, name.removesuffix(b"_total")):
            start = b"\n# TYPE " + family + b" "
            at = self._text.find(start)
            if at >= 0:
                return self._text[at + len(start) :].split(b"\n", 1)[0].strip().decode()
        return None


def _sample(name: bytes, rest: bytes) -> Sample:
    match = _SAMPLE.match(rest.rstrip(b"\r"))
    if match is not None:
        try:
            return Sample(float(match[2]), match[1] or b"")
        except ValueError:
            pass
    raise UnreadableMetrics(f"malformed sample of {name.decode()}")


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
