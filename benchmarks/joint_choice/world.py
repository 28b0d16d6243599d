"""The two models, their prices, and the selectors that are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml

from pointsman_core.config import Config, load

MODELS: Final = ("small", "large")
PRICES: Final[Mapping[str, tuple[float, float]]] = {"small": (0.1, 0.3), "large": (0.9, 2.7)}
"""Dollars per million tokens of prompts and of answers: those of hosted models of 8 and 70 billion weights."""
_POOLS: Final = """
pools: {small: {models: [small]}, large: {models: [large]}}
models:
  small: {pool: small, quality: 0.6, cost: {input: 0.1, output: 0.3}}
  large: {pool: large, quality: 0.9, cost: {input: 0.9, output: 2.7}}
"""


@dataclass(slots=True)
class Expense:
    """The price of all answers so far."""

    dollars: float = 0.0
    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODELS, 0))

    def add(self, model: str, prompt: int, output: int) -> None:
        """One answer."""
        first, second = PRICES[model]
        self.dollars += (prompt * first + output * second) / 1e6
        self.requests[model] += 1


def apart() -> dict[str, object]:
    """Selectors that choose the model by themselves: by cost and by measured latency, or by saturation too, in several
    proportions, by the highest sum or by chance in proportion to it."""
    found: dict[str, object] = {}
    for picker in ("max-score", "weighted-random"):
        for latency in (0.0, 0.5, 1.0, 2.0, 4.0):
            for saturation in (0.0, 1.0, 4.0):
                name = f"cost 1, latency {latency:g}, saturation {saturation:g}, {picker}"
                scorers = [
                    {"use": "cost", "weight": 1.0},
                    {"use": "latency", "weight": latency, "of": "first-token"},
                    {"use": "saturation", "weight": saturation},
                ]
                found[name] = {"scorers": scorers, "picker": picker}
    return found


def together(limits_s: tuple[float, ...]) -> dict[str, object]:
    """Selectors that leave the model to the scheduler: the cheapest within a limit of the time to the first token."""
    return {
        f"cheapest within {limit:g} s": {"joint": {"prefer": "cheapest", "within": {"first_token_s": limit}}}
        for limit in limits_s
    }


def configuration(selectors: Mapping[str, object]) -> Config:
    """A configuration with these selectors."""
    document: dict[str, object] = yaml.safe_load(_POOLS)
    return load({**document, "selectors": dict(selectors)})
