"""The headers of the Endpoint Picker Protocol, by all their names (endpoint-picker.md §1.11)."""

from typing import Final

SUBSET: Final = "x-gateway-destination-endpoint-subset"
FAIRNESS: Final = ("x-pointsman-fairness-id", "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE: Final = ("x-pointsman-objective", "x-llm-d-inference-objective", "x-gateway-inference-objective")
REWRITE: Final = ("x-pointsman-model-name-rewrite", "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
"""Newer names first: they win."""
OWNED: Final = ("x-llm-d-inference-*", "x-llm-d-model-name-rewrite", "x-llm-d-request-*")
"""Decide about more than the client's own request, so only a trusted peer of Envoy may send them; beside
`x-gateway-*` and `x-pointsman-*`."""


def told(headers: dict[str, str], subset: tuple[str, ...] | None) -> tuple[dict[str, str], str | None]:
    """The headers for the stages, each wish under the one name that they read, and the model to rewrite to.

    `subset` is Envoy's own word and is in force whoever the client is; None when Envoy said nothing.
    """
    fairness = _taken(headers, FAIRNESS)
    objective = _taken(headers, OBJECTIVE)
    rewrite = _taken(headers, REWRITE)
    if fairness is not None:
        headers[FAIRNESS[0]] = fairness
    if objective is not None:
        headers[OBJECTIVE[0]] = objective
    if subset is not None:
        headers[SUBSET] = ",".join(subset)
    return headers, rewrite or None


def _taken(headers: dict[str, str], names: tuple[str, ...]) -> str | None:
    found = [value for name in names if (value := headers.pop(name, None)) is not None]
    return found[0] if found else None
