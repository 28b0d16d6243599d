"""The results as a table that needs no knowledge of the code."""

from collections.abc import Iterator, Sequence

from pointsman_testing.unruly.figures import CellFigures, Sum, summed
from pointsman_testing.unruly.rows import GROUPS

LEGEND = """\
Each cell of the matrix is one pool of 1, 2, 3 or 8 engines of which one, half or all misbehave for some seconds, while
clients send requests. In the table, over all shapes of a row:
  failed   clients that got no good answer while a good engine was there; + those that waited for it for over 6 s
  share    requests that went to the misbehaving engines after 5 s, as part of an equal share: 100 % is round-robin's
  laws     shapes in which all laws hold (of other routers: those of L1 to L4 that need no records and no diagnosis)
"""


def table(found: Sequence[CellFigures], *, grouped: bool = False) -> Iterator[str]:
    """Lines of Markdown: a line for each misbehaviour, or for each group of them; three columns for each system."""
    systems = sorted({one.system for one in found})
    kinds = {words: {row.name for row in rows} for words, rows in GROUPS.items()}
    lines = kinds if grouped else {row.name: {row.name} for rows in GROUPS.values() for row in rows}
    yield "| an engine | " + " | ".join(f"{system}: failed + late | share | laws" for system in systems) + " |"
    yield "|---|" + "---|" * (3 * len(systems))
    for words, names in (*lines.items(), ("**all**", {one.row for one in found})):
        parts = [summed([one for one in found if one.system == system and one.row in names]) for system in systems]
        if any(part.cells for part in parts):
            yield f"| {words} | " + " | ".join(_words(part) for part in parts) + " |"


def _words(part: Sum) -> str:
    if not part.cells:
        return " | | "
    failed = f"{part.failed} + {part.late} of {part.asked}" if part.asked else ""
    share = "" if part.share is None else f"{part.share:.0%}".replace("%", " %")
    broken = f" ({', '.join(part.broken)})" if part.broken else ""
    return f"{failed} | {share} | {part.held} of {part.cells}{broken}"
