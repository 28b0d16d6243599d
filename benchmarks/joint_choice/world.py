"""The two models, their prices, and the selectors that are compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml

from pointsman_core.config import Config, load

MODELS: Final = ("small", "large")
PRICES: Final[Mapping[str, tuple[float, float]]] = {"small": (0.1, 0.3), "large": (0.9, 2.7)}
"""Dollars per million tokens of prompts and of answers: those of hosted models of 8 and 70 billion weights."""
WORTHS: Final = (
    (0.0, 0.002), (0.0, 0.01), (0.0, 0.03), (0.0, 0.1), (0.0005, 0.0), (0.0005, 0.02), (0.001, 0.0), (0.002, 0.0),
    (0.002, 0.02), (0.005, 0.0), (0.005, 0.05),
)  # fmt: skip
"""Dollars that a second is worth, to the last token and beyond that to the first."""
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


def together() -> dict[str, object]:
    """Selectors that leave the model to the scheduler: the cheapest within a limit, or the one of the highest net worth
    at several prices of a second."""
    found: dict[str, object] = {}
    for limit in (1.0, 2.0):
        found[f"cheapest, first token within {limit:g} s"] = {"prefer": "cheapest", "within": {"first_token_s": limit}}
    for limit in (8.0, 12.0):
        found[f"cheapest, answer within {limit:g} s"] = {"prefer": "cheapest", "within": {"answer_s": limit}}
    for second, first in WORTHS:
        name = f"a second is worth ${second:g}, to the first token ${first:g} more"
        found[name] = {"worth": {"second": second, "first_token_second": first}}
    return {name: {"joint": joint} for name, joint in found.items()}


def configuration(selectors: Mapping[str, object]) -> Config:
    """A configuration with these selectors."""
    document: dict[str, object] = yaml.safe_load(_POOLS)
    return load({**document, "selectors": dict(selectors)})
