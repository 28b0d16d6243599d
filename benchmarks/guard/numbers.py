"""Ordinary numeric text without cards: counts what the guard wrongly takes for personal data."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

EACH: Final = 5_000
"""Texts of each kind."""
BAR: Final = 0.005
"""Share of the texts of one kind in which a card may be found."""
INTEGERS: Final = "integers of 16 digits"
"""Exempt from the bar: a tenth of those with an issuer's first digits pass Luhn's check, and can't be distinguished
from cards."""

_numbers = random.Random(20)


def _grouped(mark: str) -> str:
    return f"The total is {_numbers.randrange(10**12, 10**16):,} units.".replace(",", mark)


def _uuid() -> str:
    digits = f"{_numbers.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


KINDS: Final[dict[str, Callable[[], str]]] = {
    "floats": lambda: repr(_numbers.random() * _numbers.choice((1, 100, 10_000))),
    "coordinates in JSON": lambda: json.dumps({"lat": _numbers.uniform(-90, 90), "lon": _numbers.uniform(-180, 180)}),
    "decimal commas": lambda: f"{_numbers.random() * 100} Grad".replace(".", ","),
    "times in ms, µs, ns": lambda: str(_numbers.randrange(16 * 10**11, 19 * 10**11) * 10 ** _numbers.choice((0, 3, 6))),
    "integers below 10^18": lambda: str(_numbers.randrange(10**18)),
    "amounts with commas": lambda: _grouped(","),
    "amounts with dots": lambda: _grouped("."),
    "rows of four-digit numbers": lambda: " ".join(str(_numbers.randrange(1000, 10_000)) for _ in range(12)),
    "bar codes": lambda: f"EAN {_numbers.randrange(10**12, 10**13)}",
    "phone numbers": lambda: f"+49 {_numbers.randrange(100, 999)} {_numbers.randrange(10**6, 10**8)}",
    "UUIDs": _uuid,
    INTEGERS: lambda: str(_numbers.randrange(10**15, 10**16)),
}


def cards_in(categories: Callable[[str], list[str]]) -> Iterator[bool]:
    """Print how often a card is found in each kind of text; whether each kept its bar."""
    for kind, text in KINDS.items():
        counts = Counter(category for _ in range(EACH) for category in set(categories(text())))
        found = counts["pii.card"]
        print(f"  {kind:<28} a card in {found:>4} of {EACH}   bar {'none' if kind == INTEGERS else f'{BAR:.1%}'}")
        yield found <= BAR * EACH or kind == INTEGERS
