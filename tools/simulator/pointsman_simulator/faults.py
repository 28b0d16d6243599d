"""The faults that an engine can be made to show."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

FaultKind: TypeAlias = Literal[
    "refuse", "stall", "stall-all", "slow", "error", "cut", "die", "ignore-rank", "stall-rank", "hide-rank",
    "idle-rank", "wake-hang", "wake-ignored", "wake-short",
]  # fmt: skip

_VALUES: Final[dict[FaultKind, str | None]] = {
    "refuse": None,
    "stall": None,
    "stall-all": None,
    "slow": "how many times slower",
    "error": "HTTP status 400 to 599",
    "cut": "tokens sent before the connection is cut",
    "die": "tokens sent before the process ends",
    "ignore-rank": None,
    "stall-rank": "rank",
    "hide-rank": "rank",
    "idle-rank": "rank",
    "wake-hang": None,
    "wake-ignored": None,
    "wake-short": None,
}
_WHOLE: Final = ("cut", "die", "stall-rank", "hide-rank", "idle-rank")
_PER_REQUEST: Final = ("stall", "stall-all", "error", "cut", "die")

HELP: Final = (
    "refuse (connections are refused) | stall (inference is accepted, never answered) | stall-all (health and metrics "
    "too) | slow=FACTOR | error=STATUS | cut=TOKENS (connection cut after) | die=TOKENS (process ends after) | "
    "ignore-rank (the header counts for nothing) | stall-rank=RANK | hide-rank=RANK (not among its metrics) | "
    "idle-rank=RANK (no requests among its metrics) | wake-hang (/wake_up doesn't answer) | wake-ignored (it answers "
    "200 and sleeps on) | wake-short (it sleeps again at once); "
    "stall, error, cut and die take @SHARE, the share of requests they hit"
)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    value: float = 0.0
    share: float = 1.0
    """Share of requests it hits, 0 to 1."""


def parse_fault(text: str) -> Fault:
    """`kind[=value][@share]`. Raises ValueError that names what would be right."""
    body, at, share_text = text.partition("@")
    name, equals, value_text = body.partition("=")
    if name not in _VALUES:
        raise ValueError(f"unknown fault {name!r}; known: {', '.join(_VALUES)}")
    kind, meaning = name, _VALUES[name]
    if bool(equals) != (meaning is not None):
        wanted = f"{name}={meaning.upper()}" if meaning else name
        raise ValueError(f"fault {text!r}: expected {wanted!r}")
    value = _number(text, value_text) if equals else 0.0
    if kind == "error" and not (400 <= value <= 599 and value == int(value)):
        raise ValueError(f"fault {text!r}: the value must be an {meaning}")
    if kind == "slow" and value <= 0:
        raise ValueError(f"fault {text!r}: the factor must be above 0")
    if kind in _WHOLE and (value < 0 or value != int(value)):
        raise ValueError(f"fault {text!r}: the value must be a number of {meaning}")
    share = _number(text, share_text) if at else 1.0
    if at and (kind not in _PER_REQUEST or not 0 < share <= 1):
        raise ValueError(
            f"fault {text!r}: @share must be above 0 and at most 1, and only for {', '.join(_PER_REQUEST)}"
        )
    return Fault(kind, value, share)


class FaultPlan:
    """The faults in force, and which of them hit a request."""

    def __init__(self, faults: Sequence[Fault] = (), seed: int = 0) -> None:
        self.faults = tuple(faults)
        self._random = random.Random(seed)

    def draw_faults(self) -> dict[FaultKind, float]:
        """The per-request faults that hit the request at hand, with their values."""
        return {
            fault.kind: fault.value
            for fault in self.faults
            if fault.kind in _PER_REQUEST and (fault.share >= 1 or self._random.random() < fault.share)
        }

    def has(self, kind: FaultKind) -> bool:
        return any(fault.kind == kind for fault in self.faults)

    @property
    def refuses(self) -> bool:
        return self.has("refuse")

    @property
    def stalls_everything(self) -> bool:
        return self.has("stall-all")

    @property
    def ignores_ranks(self) -> bool:
        return self.has("ignore-rank")

    def list_ranks(self, kind: FaultKind) -> frozenset[int]:
        """The numbers of the ranks that have this fault."""
        return frozenset(int(fault.value) for fault in self.faults if fault.kind == kind)

    @property
    def slowness(self) -> float:
        return max((fault.value for fault in self.faults if fault.kind == "slow"), default=1.0)


def _number(text: str, digits: str) -> float:
    try:
        return float(digits)
    except ValueError:
        raise ValueError(f"fault {text!r}: {digits!r} is not a number") from None
