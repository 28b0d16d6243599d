"""The results as a table that needs no knowledge of the code."""

from collections.abc import Iterator, Sequence

from pointsman_testing.unruly.figures import Figures, Sum, summed
from pointsman_testing.unruly.rows import ROWS

LEGEND = """\
Each cell of the matrix is one pool of 1, 2, 3 or 8 engines of which one, half or all misbehave for some seconds, while
clients send requests. In the table, over all shapes of a row:
  failed   clients that got no good answer while a good engine was there; + those that waited for it for over 6 s
  share    requests that went to the misbehaving engines after 5 s, as part of an equal share: 100 % is round-robin's
  laws     shapes in which all laws hold (of other routers: those of L1 to L4 that need no records and no diagnosis)
"""


def table(found: Sequence[Figures]) -> Iterator[str]:
    """Lines of Markdown: a row for each misbehaviour, three columns for each system."""
    systems = sorted({one.system for one in found})
    rows = [row.name for row in ROWS if any(one.row == row.name for one in found)]
    yield "| misbehaviour | " + " | ".join(f"{system}: failed + late | share | laws" for system in systems) + " |"
    yield "|---|" + "---|" * (3 * len(systems))
    for row in rows:
        parts = [summed([one for one in found if (one.system, one.row) == (system, row)]) for system in systems]
        yield f"| {row} | " + " | ".join(_words(part) for part in parts) + " |"
    every = [summed([one for one in found if one.system == system]) for system in systems]
    yield "| **all** | " + " | ".join(_words(part) for part in every) + " |"


def _words(part: Sum) -> str:
    if not part.cells:
        return " | | "
    failed = f"{part.failed} + {part.late} of {part.asked}" if part.asked else ""
    share = "" if part.share is None else f"{part.share:.0%}".replace("%", " %")
    broken = f" ({', '.join(part.broken)})" if part.broken else ""
    return f"{failed} | {share} | {part.held} of {part.cells}{broken}"
