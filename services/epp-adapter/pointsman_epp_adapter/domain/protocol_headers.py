"""Headers of the protocols around this edge: the Endpoint Picker Protocol, Dynamo, and the conformance tests."""

from collections.abc import Callable, Iterable
from typing import Final

from pointsman_epp_adapter.domain.envoy_events import RequestHead, ResponseHead
from pointsman_epp_adapter.domain.mutation import Header

SUBSET: Final = "x-gateway-destination-endpoint-subset"
FAIRNESS: Final = ("x-pointsman-fairness-id", "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE: Final = ("x-pointsman-objective", "x-llm-d-inference-objective", "x-gateway-inference-objective")
REWRITE: Final = ("x-pointsman-model-name-rewrite", "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
"""Newer names first: they win."""
_WISHES: Final = frozenset((*FAIRNESS, *OBJECTIVE, *REWRITE))
OWNED: Final = ("x-llm-d-inference-*", "x-llm-d-model-name-rewrite", "x-llm-d-request-*")
"""Decide about more than the client's own request, so only a trusted peer of Envoy may send them; beside
`x-gateway-*` and `x-pointsman-*`."""


def told(headers: dict[str, str], subset: tuple[str, ...] | None) -> tuple[dict[str, str], str | None]:
    """The headers for the stages, each wish under the one name that they read, and the model to rewrite to.

    `subset` comes from Envoy itself and applies to every client; None: Envoy sets none.
    """
    if _WISHES.isdisjoint(headers):
        if subset is not None:
            headers[SUBSET] = ",".join(subset)
        return headers, None
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


_PREFILLER: Final = b"x-prefiller-host-port"
_RANK: Final = b"x-data-parallel-rank"
_PREFILLER_RANK: Final = b"x-prefiller-rank"


def worker_headers(worker: str, edits: Iterable[Header], worker_at: Callable[[str], str | None]) -> list[Header]:
    """The worker's id, the prefiller's and the rank, by their older and their newer names.

    `edits` are the decision's headers; `worker_at` finds a worker by its address. A worker's id is the name that it is
    registered by.
    """
    found = dict(edits)
    prefiller = worker_at(found[_PREFILLER].decode().partition(",")[0]) if _PREFILLER in found else None
    headers = _both("worker-instance-id", worker)
    if prefiller is not None:
        headers += _both("prefill-instance-id", prefiller)
    if _RANK in found:
        headers += _both("dp-rank", found[_RANK].decode())
    if _PREFILLER_RANK in found:
        headers += _both("prefill-dp-rank", found[_PREFILLER_RANK].decode().partition("/")[0])
    mode = "aggregated" if prefiller is None else "disaggregated"
    return [*headers, (b"x-dynamo-routing-mode", mode.encode())]


def _both(name: str, value: str) -> list[Header]:
    text = value.encode("ascii", "replace")
    return [(f"x-{name}".encode(), text), (f"x-dynamo-{name}".encode(), text)]


SELECTION: Final = b"test-epp-endpoint-selection"
SERVED: Final = b"x-conformance-test-served-endpoint"
_UNTOLD: Final = b"fail: missing destination endpoint served metadata"


def restricted(head: RequestHead) -> RequestHead:
    """The request with its subset as the header has it, which outranks Envoy's."""
    wanted = dict(head.headers).get(SELECTION, b"").decode("ascii", "replace")
    if not wanted:
        return head
    return head._replace(subset=tuple(part.strip() for part in wanted.split(",") if part.strip()))


def served(head: ResponseHead) -> Header:
    """The endpoint that answered, as Envoy reports it."""
    return SERVED, head.served.encode("ascii", "replace") or _UNTOLD
