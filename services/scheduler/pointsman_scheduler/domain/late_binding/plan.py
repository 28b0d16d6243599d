"""The engine that each waiting request is planned for, and the order in which an engine's requests go.

The order has classes: a higher priority goes first, and in it the requests that reached their limit, the earliest limit
first. The others of a priority go shortest first, and are placed longest first: those that are placed later go before,
so each placement knows all first tokens that it delays.
"""

from collections.abc import Sequence
from typing import Final

from pointsman_delay.outlook import Outlook
from pointsman_scheduler.domain.late_binding.unbound import Unbound

_RELATIVES: Final = 16
"""Requests with the same beginning that one request is compared with."""


def turn(priority: int, latest: float, uncached: float, now: float) -> tuple[float, bool, float]:
    """The order of requests at one engine, least first. The first two figures are their class."""
    overdue = latest <= now
    return -priority, not overdue, latest if overdue else uncached


def place(waiting: Sequence[Unbound], outlook: Outlook, now: float) -> bool:
    """Plan each waiting request for the engine where it costs least. Returns whether the engine of any own request
    changed."""
    classes: dict[tuple[float, bool], list[tuple[float, float, Unbound]]] = {}
    for each in waiting:
        priority, shortest_first, length = turn(each.request.facts.priority, each.latest, each.least_uncached(), now)
        entry = -length if shortest_first else length, each.since, each
        classes.setdefault((priority, shortest_first), []).append(entry)
    changed = False
    families: dict[int, list[Unbound]] = {}
    for (_, shortest_first), entries in sorted(classes.items()):
        for *_, each in sorted(entries, key=lambda entry: entry[:2]):
            count_shared(each, families)
            costs = outlook.costs(each.prompt, each.matched, each.request.longest_output, each.uses, each.rows)
            at = costs.index(min(costs))
            row = at if each.rows is None else each.rows[at]
            changed |= row != each.row and each.reported is None
            each.row = row
            each.uncached = each.tokens_to_compute(float(each.matched[row]))
            outlook.add(row, each.uncached, each.prompt, before=not shortest_first)
        outlook.close()
    return changed


def count_shared(each: Unbound, families: dict[int, list[Unbound]]) -> None:
    """Count blocks that an already placed request will compute as held where it goes."""
    blocks = each.request.blocks
    if not len(blocks):
        return
    family = families.setdefault(int(blocks[0]), [])
    for other in family[-_RELATIVES:]:
        each.shares(other)
    family.append(each)
