"""Tells a client which model answers, where it isn't the one that it asked for."""

import re
from typing import Final

from pointsman_contracts.journey import Target
from pointsman_edge.deciding.prices import Prices

HEADER: Final = b"x-pointsman-model"
_UNSAFE: Final = re.compile(r"[^\x20-\x7e]")


def chosen_model(prices: Prices, target: Target, asked: str) -> list[tuple[bytes, bytes]]:
    """The header, with the name that the configuration has for the target; none where the client asked for that."""
    name = prices.name(target, asked)
    return [] if name == asked else [(HEADER, _UNSAFE.sub("?", name).encode())]
